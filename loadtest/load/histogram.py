"""A histogram of high dynamic range: microseconds to days, each value within a thousandth.

After Gil Tene's HdrHistogram: values below 2,048 have a bucket each; above, every power of two is
cut into 1,024 equal buckets. Histograms of several runs add up without loss.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

_BITS = 11
_HALF = 1 << (_BITS - 1)
_UNIT_S = 1e-6


class Histogram:
    """Counts durations.

    Args:
        values: durations in seconds, not negative.
    """

    def __init__(self, values: Iterable[float] = ()) -> None:
        self._counts: Counter[int] = Counter()
        self._sum = 0.0
        self._max = 0.0
        for value in values:
            self.record(value)

    def __len__(self) -> int:
        return self._counts.total()

    def record(self, seconds: float) -> None:
        """Counts one duration.

        Raises:
            ValueError: it is negative or no number.
        """
        if not 0 <= seconds < math.inf:
            raise ValueError(f"{seconds} is no duration")
        self._counts[_bucket(round(seconds / _UNIT_S))] += 1
        self._sum += seconds
        self._max = max(self._max, seconds)

    def add(self, other: "Histogram") -> None:
        """Counts what another one has counted."""
        self._counts.update(other._counts)  # noqa: SLF001  of the same class
        self._sum += other._sum  # noqa: SLF001
        self._max = max(self._max, other._max)  # noqa: SLF001

    def percentile(self, percent: float) -> float:
        """The smallest duration that at least `percent` do not exceed, in seconds, within 0.1 %.

        Raises:
            ValueError: nothing was counted.
        """
        wanted = max(1, math.ceil(len(self) * percent / 100))
        for bucket in sorted(self._counts):
            wanted -= self._counts[bucket]
            if wanted <= 0:
                return min(self._max, _middle(bucket) * _UNIT_S)
        raise ValueError("an empty histogram has no percentile")

    def steps(self) -> tuple[list[float], list[float]]:
        """Durations in seconds and, for each, the share that does not exceed it."""
        values, shares, seen = [], [], 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            values.append(min(self._max, _middle(bucket) * _UNIT_S))
            shares.append(seen / len(self))
        return values, shares

    def to_json(self) -> dict[str, Any]:
        """All of it, JSON-ready; `counts` is by bucket."""
        counts = {str(bucket): self._counts[bucket] for bucket in sorted(self._counts)}
        return {"counts": counts, "sum_s": self._sum, "max_s": self._max}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Histogram":
        """What `to_json` wrote."""
        histogram = cls()
        histogram._counts = Counter({int(k): n for k, n in found["counts"].items()})
        histogram._sum, histogram._max = found["sum_s"], found["max_s"]
        return histogram

    def summary(self) -> dict[str, Any]:
        """Count, mean, p50, p95, p99, max in seconds, and the histogram itself; None when empty."""
        if not self:
            return {"count": 0, "mean_s": None, "p50_s": None, "p95_s": None, "p99_s": None,
                    "max_s": None, "histogram": self.to_json()}  # fmt: skip
        return {
            "count": len(self),
            "mean_s": self._sum / len(self),
            **{f"p{percent}_s": self.percentile(percent) for percent in (50, 95, 99)},
            "max_s": self._max,
            "histogram": self.to_json(),
        }


def _bucket(value: int) -> int:
    shift = max(0, value.bit_length() - _BITS)
    return shift * _HALF + (value >> shift)


def _middle(bucket: int) -> float:
    if bucket < 2 * _HALF:
        return bucket
    shift = bucket // _HALF - 1
    low = (bucket - shift * _HALF) << shift
    return low + ((1 << shift) - 1) / 2
