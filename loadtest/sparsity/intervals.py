"""Intervals of means by resampling; the same values always give the same interval."""

from collections.abc import Sequence

import numpy as np

_RESAMPLES = 2000
_BOUNDS = (2.5, 97.5)


def mean_interval(values: Sequence[float]) -> list[float] | None:
    """Bounds of 95 % of a mean, resampling the values; None of fewer than two."""
    if len(values) < 2:  # noqa: PLR2004  one value has no spread
        return None
    values_N = np.asarray(values, dtype=np.float64)
    drawn_RN = np.random.default_rng(0).integers(0, len(values_N), (_RESAMPLES, len(values_N)))
    means_R = values_N[drawn_RN].mean(axis=1)
    low, high = np.percentile(means_R, _BOUNDS)
    return [float(low), float(high)]
