"""What a kernel's result may differ by from float64, before its time counts."""

from torch import Tensor

from shared.errors import InternalError

LIMIT = 1e-2
"""Largest error of a bfloat16 result, relative to the largest value."""


def relative_error(got: Tensor, wanted: Tensor) -> float:
    """Largest difference over the largest value; NaN where a result is none."""
    return float((got.double() - wanted).abs().max() / wanted.abs().max())


def relative_distance(got: Tensor, wanted: Tensor) -> float:
    """Length of the difference over the length of what was wanted; NaN where a result is none."""
    return float((got.double() - wanted).norm() / wanted.norm())


def require_small(what: str, error: float) -> None:
    """Checks one error.

    Raises:
        InternalError: it is above the limit, or no number.
    """
    if not error < LIMIT:
        raise InternalError(
            f"{what}: {error:.3g} off float64, {LIMIT} is allowed: the kernel is wrong on this "
            "device, so its speed means nothing; report this with the Triton version"
        )
