"""Distributions for a collector, whoever sends them: the seam to OpenTelemetry."""

from dataclasses import dataclass
from typing import Protocol

from shared.telemetry.spans import Attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """A distribution that is collected."""

    name: str
    """As collectors know it."""
    unit: str
    """In UCUM."""
    description: str
    """One sentence."""
    bounds: tuple[float, ...]
    """Upper ends of all buckets but the last, rising."""


class Histograms(Protocol):
    """Takes values; cheap, from any thread, never raises."""

    def observe(self, histogram: Histogram, value: float, attributes: Attributes) -> None:
        """Counts one value; `attributes` must have few different values."""

    def close(self) -> None:
        """Sends what was counted, as far as that is possible within seconds; blocks."""
