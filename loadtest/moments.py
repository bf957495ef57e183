"""Moments of an open loop: a renewal process whose gaps are Gamma distributed."""

from collections.abc import Iterator
from random import Random


def gamma_moments(
    rate: float, seconds: float, *, variation: float = 1.0, rng: Random
) -> Iterator[float]:
    """Moments in `[0, seconds)`, in order.

    Args:
        rate: moments a second, in the mean.
        seconds: how long.
        variation: coefficient of variation of the gaps, above 0; 1 is a Poisson process.
        rng: draws the gaps.
    """
    shape = variation**-2
    scale = 1 / (rate * shape)
    at = rng.gammavariate(shape, scale)
    while at < seconds:
        yield at
        at += rng.gammavariate(shape, scale)
