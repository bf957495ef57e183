"""Copies the kept slots of a layer's keys and values together, in one launch.

Shapes: L prompt tokens, N kept slots, R rows of positions (1, or one a KV head), G KV heads, D head
size.
"""

import triton
import triton.language as tl
from torch import Tensor

_SLOTS = 32


def gather_slots(kv_LGD: tuple[Tensor, Tensor], positions_RN: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values at the positions of one row, or of one row a KV head; [N, G, D] each.

    Args:
        kv_LGD: keys and values, contiguous; D is a power of two.
        positions_RN: int64, each in 0..L-1.
    """
    keys, values = kv_LGD
    kv_heads, head_dim = keys.shape[1:]
    rows, slots = positions_RN.shape
    assert rows in (1, kv_heads), "one row of positions, or one a KV head"
    out_keys, out_values = (x.new_empty((slots, kv_heads, head_dim)) for x in kv_LGD)
    if slots == 0:
        return out_keys, out_values
    _gather_block[(triton.cdiv(slots, _SLOTS), kv_heads)](
        keys,
        values,
        positions_RN,
        out_keys,
        out_values,
        slots,
        0 if rows == 1 else positions_RN.stride(0),
        positions_RN.stride(1),
        KV_HEADS=kv_heads,
        D=head_dim,
        SLOTS=_SLOTS,
        num_warps=4,
    )
    return out_keys, out_values


@triton.jit(do_not_specialize=["slots", "row_stride"])
def _gather_block(
    keys_ptr,
    values_ptr,
    positions_ptr,
    out_keys_ptr,
    out_values_ptr,
    slots,
    row_stride,
    slot_stride,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    SLOTS: tl.constexpr,
):
    kv_head = tl.program_id(1)
    n = tl.program_id(0) * SLOTS + tl.arange(0, SLOTS)
    there = n < slots
    position = tl.load(positions_ptr + kv_head * row_stride + n * slot_stride, mask=there, other=0)
    d = tl.arange(0, D)[None, :]
    source = ((position.to(tl.int64) * KV_HEADS + kv_head) * D)[:, None] + d
    target = ((n.to(tl.int64) * KV_HEADS + kv_head) * D)[:, None] + d
    keys = tl.load(keys_ptr + source, mask=there[:, None])
    tl.store(out_keys_ptr + target, keys, mask=there[:, None])
    values = tl.load(values_ptr + source, mask=there[:, None])
    tl.store(out_values_ptr + target, values, mask=there[:, None])
