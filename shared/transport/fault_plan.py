"""Which faults a faulty transport makes: listed for tests, or drawn with a seed for game days."""

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from shared.errors import ConfigError

DEFAULT_DELAY_S = 1.0
"""How long a delay lasts whose text does not say."""


class FaultKind(Enum):
    """What goes wrong."""

    DROP = "drop"
    """The chunk is never sent, and nobody is told."""
    DELAY = "delay"
    """Everything stands still for a while; the lease is kept alive meanwhile."""
    DUPLICATE = "duplicate"
    """The chunk is sent twice."""
    CORRUPT = "corrupt"
    """One byte of the chunk is another one, before any checksum of the transport is taken."""
    TRUNCATE = "truncate"
    """Only the first half of the chunk is sent."""
    KILL = "kill"
    """The connection goes away, and the sender is told that it did."""


class Moment(Enum):
    """Where in a handoff's transfer."""

    HELLO = "hello"
    """Before the first word to the receiver."""
    GRANT = "grant"
    """When both sides know each other and no byte has moved."""
    FIRST = "first"
    """At the first chunk."""
    MIDDLE = "middle"
    """At the second chunk, when others follow it."""
    LAST = "last"
    """At the last chunk."""
    SEAL = "seal"
    """When every byte is sent and the end is not."""
    ACK = "ack"
    """When the receiver has said that every byte is there, and the sender does not hear it."""


CHUNK_KINDS = frozenset(
    {FaultKind.DROP, FaultKind.DUPLICATE, FaultKind.CORRUPT, FaultKind.TRUNCATE}
)
"""Faults of a chunk; the others may come at any moment."""

CHUNK_MOMENTS = frozenset({Moment.FIRST, Moment.MIDDLE, Moment.LAST})
"""Moments that have a chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong in one transfer.

    Raises:
        ConfigError: there is no chunk at that moment that this could happen to.
    """

    kind: FaultKind
    """What."""
    moment: Moment
    """Where."""
    delay_s: float = DEFAULT_DELAY_S
    """Length of a delay, in seconds."""

    def __post_init__(self) -> None:
        if self.kind in CHUNK_KINDS and self.moment not in CHUNK_MOMENTS:
            raise ConfigError(
                f"fault {self.kind.value} cannot come at {self.moment.value}: it needs a chunk; "
                "choose first, middle or last",
                param="faults",
            )

    def __str__(self) -> str:
        pause = f":{self.delay_s:g}" if self.kind is FaultKind.DELAY else ""
        return f"{self.kind.value}{pause}@{self.moment.value}"


class FaultPlan(Protocol):
    """Says what goes wrong in which transfer."""

    def next_transfer(self) -> tuple[Fault, ...]:
        """Faults of the transfer that begins now; every call is another transfer."""


class ListedFaults:
    """Faults of the first transfers, one entry each; those after them go well.

    Args:
        entries: what happens to each transfer, in order; None: nothing.
    """

    def __init__(self, *entries: Fault | None) -> None:
        self._left = list(entries)

    def next_transfer(self) -> tuple[Fault, ...]:
        """Faults of the next transfer; see `FaultPlan.next_transfer`."""
        fault = self._left.pop(0) if self._left else None
        return () if fault is None else (fault,)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultOdds:
    """A fault and how often it comes."""

    fault: Fault
    """What."""
    share: float
    """Share of the transfers, above 0, up to 1."""


class SeededFaults:
    """Every transfer draws each fault by its odds; the same seed gives the same faults.

    Args:
        odds: what may happen.
        seed: of the draws.
    """

    def __init__(self, odds: Sequence[FaultOdds], *, seed: int) -> None:
        self._odds = tuple(odds)
        self._seed = seed
        self._draw = random.Random(seed)  # noqa: S311  repeats a game day, guards nothing

    def next_transfer(self) -> tuple[Fault, ...]:
        """Draws for the next transfer; see `FaultPlan.next_transfer`."""
        # A draw for each, whatever comes: one fault's odds do not shift the draws of another.
        drawn = [(odds, self._draw.random()) for odds in self._odds]
        return tuple(odds.fault for odds, value in drawn if value < odds.share)

    @property
    def text(self) -> str:
        """The plan in one line, as `parse_faults` reads it."""
        parts = [f"{odds.fault}={odds.share:g}" for odds in self._odds]
        return ", ".join([*parts, f"seed={self._seed}"])


_ENTRY = re.compile(r"(?P<kind>\w+)(?::(?P<delay>[\d.]+))?@(?P<moment>\w+)(?:=(?P<share>[\d.]+))?")
_SEED = re.compile(r"seed=(\d+)")


def parse_faults(entries: Iterable[str]) -> SeededFaults:
    """Reads a plan, one entry a fault.

    Args:
        entries: `KIND@MOMENT=SHARE` each, a delay as `delay:SECONDS@MOMENT=SHARE`, and at most one
            `seed=N` (0 when left out). Without a share the fault comes in every transfer.

    Raises:
        ConfigError: an entry cannot be read, with what is known in its place.
    """
    odds: list[FaultOdds] = []
    seed = 0
    for entry in entries:
        text = entry.strip()
        if found := _SEED.fullmatch(text):
            seed = int(found[1])
            continue
        match = _ENTRY.fullmatch(text)
        if match is None:
            raise _unreadable(text, "write KIND@MOMENT=SHARE, like kill@ack=0.01, or seed=7")
        odds.append(_odds(text, match))
    if not odds:
        raise _unreadable(f"seed={seed}", "name at least one fault, like kill@ack=0.01")
    return SeededFaults(odds, seed=seed)


def _odds(text: str, match: re.Match[str]) -> FaultOdds:
    try:
        kind, moment = FaultKind(match["kind"]), Moment(match["moment"])
    except ValueError:
        kinds = ", ".join(kind.value for kind in FaultKind)
        moments = ", ".join(moment.value for moment in Moment)
        raise _unreadable(text, f"kinds are {kinds}; moments are {moments}") from None
    if match["delay"] is not None and kind is not FaultKind.DELAY:
        raise _unreadable(text, "only a delay has seconds")
    try:
        delay_s = float(match["delay"] or DEFAULT_DELAY_S)
        share = float(match["share"] or 1.0)
    except ValueError:
        raise _unreadable(text, "its seconds or its share is no number") from None
    if not 0 < share <= 1:
        raise _unreadable(text, "the share of the transfers is above 0 and at most 1")
    return FaultOdds(fault=Fault(kind=kind, moment=moment, delay_s=delay_s), share=share)


def _unreadable(entry: str, advice: str) -> ConfigError:
    return ConfigError(f"fault {entry!r} cannot be made: {advice}", param="faults")
