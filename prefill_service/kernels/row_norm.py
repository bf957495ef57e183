"""RMS norm of rows, computed in float32 and rounded once.

The residual needs no kernel of its own: it is added inside the products that come before, which
write to the stream of activations in place.

Shapes: T tokens, E width of a row.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_WARP_ELEMENTS = 512


def row_norm(x_TE: Tensor, scale_E: Tensor, *, eps: float) -> Tensor:
    """[T, E], contiguous, in the dtype of `x_TE`, whose rows are contiguous themselves."""
    tokens, width = x_TE.shape
    out_TE = torch.empty((tokens, width), dtype=x_TE.dtype, device=x_TE.device)
    if tokens == 0:
        return out_TE
    block = triton.next_power_of_2(width)
    _norm_row[(tokens,)](
        x_TE,
        scale_E,
        out_TE,
        x_TE.stride(0),
        eps,
        WIDTH=width,
        BLOCK=block,
        num_warps=max(1, min(16, block // _WARP_ELEMENTS)),
    )
    return out_TE


@triton.jit
def _norm_row(x_ptr, scale_ptr, out_ptr, x_stride, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * x_stride + e, mask=e < WIDTH, other=0.0).to(tl.float32)
    scale = tl.load(scale_ptr + e, mask=e < WIDTH, other=0.0).to(tl.float32)
    normed = x * tl.rsqrt(tl.sum(x * x, 0) / WIDTH + eps) * scale
    tl.store(out_ptr + row * WIDTH + e, normed.to(out_ptr.dtype.element_ty), mask=e < WIDTH)
