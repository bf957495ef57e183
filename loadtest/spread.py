"""How repeats are summed up: medians with their spread, ratios paired within a repeat."""

import math
import statistics
from collections.abc import Sequence


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, smallest and largest of some repeats."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def paired_ratios(of: Sequence[float], to: Sequence[float]) -> dict[str, float]:
    """Spread of the ratios of values that were taken in the same repeat."""
    return spread([a / b for a, b in zip(of, to, strict=True)])


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of them do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
