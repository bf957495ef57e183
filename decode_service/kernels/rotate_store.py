"""Rotates the queries and keys of a batch and puts keys and values into their pages, in one launch.

What a decode step does between the product of a layer and its attention. Rotation is in float32
and rounds once.

Shapes: B rows, H query heads, G KV heads, D head size, N = H + 2 G heads, S slots of a pool.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rotation:
    """Angle of each row."""

    cos_BD: Tensor
    """Contiguous, any float type; the second half of D repeats the first."""
    sin_BD: Tensor
    """As the cosines."""


def rotate_and_store(
    heads_BND: Tensor,
    rotation: Rotation,
    kv_SGD: tuple[Tensor, Tensor],
    slots_B: Tensor,
    *,
    q_BHD: Tensor,
) -> None:
    """Writes rotated queries into `q_BHD`, rotated keys and values into the rows' slots.

    Args:
        heads_BND: queries, keys and values of the fused product, contiguous.
        rotation: of each row's position.
        kv_SGD: keys and values of one layer, strides alike, D contiguous.
        slots_B: slot of each row, int32; a row of a negative one writes no keys and values.
        q_BHD: is overwritten, contiguous.
    """
    keys, values = kv_SGD
    rows, heads, head_dim = q_BHD.shape
    kv_heads = keys.shape[1]
    _rotate_head[(heads + 2 * kv_heads, rows)](
        heads_BND,
        rotation.cos_BD,
        rotation.sin_BD,
        slots_B,
        q_BHD,
        keys,
        values,
        keys.stride(0),
        keys.stride(1),
        HEADS=heads,
        KV_HEADS=kv_heads,
        HALF=head_dim // 2,
        num_warps=1,
    )


@triton.jit
def _rotate_head(
    heads_ptr,
    cos_ptr,
    sin_ptr,
    slots_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    slot_stride,
    head_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    head, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    D: tl.constexpr = 2 * HALF
    d = tl.arange(0, HALF)
    at = heads_ptr + (row * (HEADS + 2 * KV_HEADS) + head) * D + d
    low, high = tl.load(at), tl.load(at + HALF)
    cos = tl.load(cos_ptr + row * D + d).to(tl.float32)
    sin = tl.load(sin_ptr + row * D + d).to(tl.float32)
    low32, high32 = low.to(tl.float32), high.to(tl.float32)
    turned_low = (low32 * cos - high32 * sin).to(low.dtype)
    turned_high = (high32 * cos + low32 * sin).to(low.dtype)
    if head < HEADS:
        to = q_ptr + (row * HEADS + head) * D + d
        tl.store(to, turned_low)
        tl.store(to + HALF, turned_high)
    else:
        slot = tl.load(slots_ptr + row).to(tl.int64)
        there = (slot >= 0) & (d >= 0)
        place = slot * slot_stride + ((head - HEADS) % KV_HEADS) * head_stride + d
        if head < HEADS + KV_HEADS:
            tl.store(k_ptr + place, turned_low, mask=there)
            tl.store(k_ptr + place + HALF, turned_high, mask=there)
        else:
            tl.store(v_ptr + place, low, mask=there)
            tl.store(v_ptr + place + HALF, high, mask=there)
