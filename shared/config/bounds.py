"""Bounds that hold for the numbers of every role's settings, whatever they mean there."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

from shared.errors import ConfigError

MAX_SECONDS = 30 * 24 * 3600
"""Longest time of a setting: on the wire times are 32-bit milliseconds, which end at 49 days."""

MAX_PORT = 65_535
"""Highest TCP port."""


def check_numbers(settings: Any, *, role: str) -> None:  # noqa: ANN401 - any settings dataclass
    """Requires what a field's type or name promises: `x_s` is seconds, `x_port` a port.

    Every float must be finite: a comparison alone lets NaN or infinity pass one of its sides, and
    what fails then is each request.

    Raises:
        ConfigError: a number is not finite or out of range; the text names role and setting.
    """
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(
                f"{role} setting {field.name} is {value}, which is no amount; give a finite number"
            )
        if field.name.endswith("_s") and value > MAX_SECONDS:
            raise ConfigError(
                f"{role} setting {field.name} is {value} seconds, longer than a time may be; give "
                f"at most {MAX_SECONDS} (30 days)"
            )
        if field.name == "port" or field.name.endswith("_port"):
            check_range(settings, (field.name,), role=role, low=0, high=MAX_PORT)
        elif field.name == "otlp_sample_ratio":
            check_range(settings, (field.name,), role=role, low=0, high=1)


def check_range(
    settings: Any,  # noqa: ANN401 - any settings dataclass
    names: Iterable[str],
    *,
    role: str,
    low: float,
    high: float = math.inf,
) -> None:
    """Requires `low` to `high` of fields, both included.

    Raises:
        ConfigError: a number is out of range; the text names role, setting and range.
    """
    for name in names:
        value = getattr(settings, name)
        if not low <= value <= high:
            expected = f"{low} or more" if high == math.inf else f"{low} to {high}"
            raise ConfigError(
                f"{role} setting {name} is {value}, out of its range; give {expected}"
            )
