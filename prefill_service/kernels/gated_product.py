"""SwiGLU over the fused product of gate and up: both halves are read once, the result written once.

Shapes: T tokens, I width of the MLP.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048


def gated_product(gate_up_TJ: Tensor) -> Tensor:
    """silu(gate) * up, [T, I], rounded once; `gate_up_TJ` is [T, 2 I], contiguous, gate first."""
    tokens, width = gate_up_TJ.shape[0], gate_up_TJ.shape[1] // 2
    out_TI = torch.empty((tokens, width), dtype=gate_up_TJ.dtype, device=gate_up_TJ.device)
    if tokens == 0:
        return out_TI
    block = min(_BLOCK, triton.next_power_of_2(width))
    _gate_block[(tokens, triton.cdiv(width, block))](
        gate_up_TJ, out_TI, WIDTH=width, BLOCK=block, num_warps=4
    )
    return out_TI


@triton.jit
def _gate_block(gate_up_ptr, out_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = gate_up_ptr + row * (2 * WIDTH) + i
    gate = tl.load(at, mask=i < WIDTH, other=0.0).to(tl.float32)
    up = tl.load(at + WIDTH, mask=i < WIDTH, other=0.0).to(tl.float32)
    hidden = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + row * WIDTH + i, hidden.to(out_ptr.dtype.element_ty), mask=i < WIDTH)
