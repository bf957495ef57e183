"""When requests come in an open loop: whatever the server does, the next one is not held back.

Gaps are Gamma distributed: a coefficient of variation of 1 is a Poisson process, 2 to 4 are bursts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from shared.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Stage:
    """A time with one rate; several make a ramp."""

    rate: float
    """Requests per second, in the mean."""
    seconds: float
    """How long."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request's moment."""

    due_s: float
    """Since the run began."""
    stage: int
    """Which stage it belongs to, from 0."""


def arrivals(stages: Sequence[Stage], *, variation: float, seed: int) -> list[Arrival]:
    """All arrivals of a run, in order.

    Args:
        stages: one after the other; each begins anew.
        variation: coefficient of variation of the gaps, above 0.
        seed: of the run.
    """
    random = Random(f"{seed}:arrivals")
    shape = variation**-2
    found: list[Arrival] = []
    begin = 0.0
    for number, stage in enumerate(stages):
        end = begin + stage.seconds
        moment = begin + random.gammavariate(shape, 1 / (stage.rate * shape))
        while moment < end:
            found.append(Arrival(moment, number))
            moment += random.gammavariate(shape, 1 / (stage.rate * shape))
        begin = end
    return found


def parse_stages(text: str) -> tuple[Stage, ...]:
    """Reads `RATE:SECONDS,RATE:SECONDS`.

    Raises:
        ConfigError: it is no such list, or a number is not above 0.
    """
    try:
        pairs = [tuple(float(part) for part in each.split(":")) for each in text.split(",")]
        stages = tuple(Stage(rate, seconds) for rate, seconds in pairs)
    except ValueError:
        stages = ()
    numbers = [number for stage in stages for number in (stage.rate, stage.seconds)]
    if not numbers or not all(0 < number < math.inf for number in numbers):
        raise ConfigError(
            f"stages {text!r} cannot be read: they are RATE:SECONDS,RATE:SECONDS with numbers "
            "above 0; for example 1:30,2:30,4:30"
        )
    return stages
