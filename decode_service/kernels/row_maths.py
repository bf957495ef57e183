"""The small maths between the products of a decode step: norm and gate, one launch each.

Both work in float32 and round once.

Shapes: B rows, E width of a row, I width of the gated part.
"""

import triton
import triton.language as tl
from torch import Tensor

_WIDEST_GATE = 1024


def rms_norm(x_BE: Tensor, scale_E: Tensor, *, eps: float, out_BE: Tensor) -> None:
    """Divides each row by its root mean square and scales it; all contiguous.

    Args:
        x_BE: rows.
        scale_E: weights.
        eps: added to the mean square.
        out_BE: is overwritten.
    """
    rows, width = x_BE.shape
    block = triton.next_power_of_2(width)
    _norm_row[(rows,)](
        x_BE, scale_E, out_BE, eps, E=width, BLOCK=block, num_warps=max(1, min(8, block // 256))
    )


def gate(gate_up_B2I: Tensor, *, out_BI: Tensor) -> None:
    """SiLU of the first half of each row times the second; both contiguous."""
    rows, width = out_BI.shape
    block = min(_WIDEST_GATE, triton.next_power_of_2(width))
    _gate_tile[(triton.cdiv(width, block), rows)](
        gate_up_B2I, out_BI, I=width, BLOCK=block, num_warps=4
    )


@triton.jit
def _norm_row(x_ptr, scale_ptr, out_ptr, eps, E: tl.constexpr, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * E
    e = tl.arange(0, BLOCK)
    inside = e < E
    x = tl.load(x_ptr + first + e, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(scale_ptr + e, mask=inside, other=0.0).to(tl.float32)
    rate = tl.rsqrt(tl.sum(x * x, 0) / E + eps)
    tl.store(out_ptr + first + e, (x * rate * scale).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _gate_tile(gate_up_ptr, out_ptr, I: tl.constexpr, BLOCK: tl.constexpr):  # noqa: E741
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(1).to(tl.int64)
    inside = i < I
    at = gate_up_ptr + row * 2 * I + i
    x = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + I, mask=inside, other=0.0).to(tl.float32)
    y = x / (1.0 + tl.exp(-x)) * up
    tl.store(out_ptr + row * I + i, y.to(out_ptr.dtype.element_ty), mask=inside)
