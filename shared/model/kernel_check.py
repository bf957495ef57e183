"""Says what is wrong with an attention kernel's results, before it may serve.

Shapes: T queries, H query heads, D head size.
"""

from collections.abc import Callable

from torch import Tensor

LARGEST_ERROR = 1e-2
"""Largest difference from float32, relative to the largest value, of a 16-bit kernel."""


def fault_of(
    attend: Callable[[], tuple[Tensor, Tensor | None]],
    *,
    wanted: Callable[[], tuple[Tensor, Tensor]],
) -> str | None:
    """Why a kernel's results cannot be used, in one clause; None: they are right.

    Args:
        attend: calls the kernel: output [T, H, D] and natural log-sum-exp [T, H].
        wanted: gives both as they should be, float32.
    """
    try:
        out_THD, lse_TH = attend()
        assert lse_TH is not None, "it gives no log-sum-exp"
        wanted_THD, wanted_TH = wanted()
        off, lse_off = _difference(out_THD, wanted_THD), _difference(lse_TH, wanted_TH)
    except Exception as error:  # noqa: BLE001  a library may end in an error of its own kind
        return said(error)
    if not off < LARGEST_ERROR:
        return f"its output is {off:.2g} off float32, {LARGEST_ERROR} is allowed"
    if not lse_off < LARGEST_ERROR:
        return f"its log-sum-exp is {lse_off:.2g} off float32, {LARGEST_ERROR} is allowed"
    return None


def said(error: Exception) -> str:
    """Kind and first line of an error, as `RuntimeError: no kernel image`."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no message'}"


def _difference(got: Tensor, wanted: Tensor) -> float:
    return float((got.float() - wanted).abs().max() / wanted.abs().max())
