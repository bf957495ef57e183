"""Attention of the kept tokens' queries over all keys of a prompt, causal by original position.

At the pruning layer only the kept tokens need queries, while every token still has its keys. No
bottom-right mask fits that, and a dense one would be T x L, so each query brings its position: it
sees keys 0 up to there. Positions ascend, so that a block of queries reads no further than its
last one sees and needs a mask only from where its first one ends.

Shapes: T queries, S keys, H query heads, G KV heads, D head size. Logarithms are of base 2.
"""

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from shared.errors import ConfigError
from shared.model.exact_attention import HEAD_SIZES

_LOG2_E = math.log2(math.e)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTiles:
    """Sizes that the kernel is compiled for."""

    queries: int = 128
    """Queries of a program, a power of two of at least 16."""
    keys: int = 64
    """Keys looked at together, a power of two of at least 16."""
    warps: int = 8
    """Warps of a program."""
    stages: int = 3
    """Key blocks in flight."""


def query_tiles(head_dim: int) -> QueryTiles:
    """Sizes whose keys and values fit shared memory at this head size."""
    return QueryTiles() if head_dim <= 128 else QueryTiles(queries=64, keys=32)  # noqa: PLR2004


def kept_queries_attention(
    q_THD: Tensor,
    kv_SGD: tuple[Tensor, Tensor],
    positions_T: Tensor,
    *,
    tiles: QueryTiles | None = None,
) -> Tensor:
    """[T, H, D] in the queries' dtype: softmax attention, scale 1 / sqrt(D).

    Args:
        q_THD: rotated queries, D contiguous.
        kv_SGD: rotated keys and values; key s sits at position s; strides alike, D contiguous.
        positions_T: ascending, each in 0..S-1, int32 or int64; query t sees keys 0..positions_T[t].
        tiles: sizes; None takes those of the head size.

    Raises:
        ConfigError: a head size or strides that the kernel was not written for.
    """
    keys, values = kv_SGD
    num_queries, heads, head_dim = q_THD.shape
    if head_dim not in HEAD_SIZES:
        raise ConfigError(
            f"attention of kept queries on Triton takes head sizes 16 to 256 in powers of two, not "
            f"{head_dim}: use the torch backend"
        )
    if q_THD.stride(2) != 1 or keys.stride(2) != 1 or keys.stride() != values.stride():
        raise ConfigError(
            "attention of kept queries on Triton reads keys and values of equal strides whose head "
            "dimension is contiguous: the layout of the caller's tensors changed"
        )
    out_THD = torch.empty_like(q_THD, memory_format=torch.contiguous_format)
    if num_queries == 0:
        return out_THD
    sizes = tiles or query_tiles(head_dim)
    _attend_block[(heads, triton.cdiv(num_queries, sizes.queries))](
        q_THD,
        keys,
        values,
        positions_T,
        out_THD,
        num_queries,
        head_dim**-0.5 * _LOG2_E,
        q_THD.stride(0),
        q_THD.stride(1),
        keys.stride(0),
        keys.stride(1),
        HEADS=heads,
        GROUP=heads // keys.shape[1],
        D=head_dim,
        QUERIES=sizes.queries,
        KEYS=sizes.keys,
        num_warps=sizes.warps,
        num_stages=sizes.stages,
    )
    return out_THD


@triton.jit
def _read_keys(
    state,
    q,
    tensors,
    bounds,
    seen_to,
    scale,
    MASKED: tl.constexpr,
    D: tl.constexpr,
    KEYS: tl.constexpr,
):
    """One stretch of keys, whole blocks apart from its end: (out, total, top) carried on.

    `tensors` is (keys, values, stride of a token), already moved to the KV head.
    """
    out, total, top = state
    k_ptr, v_ptr, token_stride = tensors
    start, end = bounds
    d = tl.arange(0, D)
    for first in range(start, end, KEYS):
        key = first + tl.arange(0, KEYS)
        at = key.to(tl.int64)[:, None] * token_stride + d[None, :]
        if MASKED:
            inside = (key < end)[:, None]
            k = tl.load(k_ptr + at, mask=inside, other=0.0)
            v = tl.load(v_ptr + at, mask=inside, other=0.0)
        else:
            k = tl.load(k_ptr + at)
            v = tl.load(v_ptr + at)
        logits = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if MASKED:
            logits = tl.where(key[None, :] <= seen_to[:, None], logits, -float("inf"))
        # Every query sees key 0, which comes in the first block, so `top` is finite from there on.
        new_top = tl.maximum(top, tl.max(logits, 1))
        keep = tl.exp2(top - new_top)
        p = tl.exp2(logits - new_top[:, None])
        total = total * keep + tl.sum(p, 1)
        out = tl.dot(p.to(v.dtype), v, out * keep[:, None], input_precision="ieee")
        top = new_top
    return out, total, top


@triton.jit(do_not_specialize=["num_queries"])
def _attend_block(
    q_ptr,
    k_ptr,
    v_ptr,
    positions_ptr,
    out_ptr,
    num_queries,
    scale,
    q_token_stride,
    q_head_stride,
    k_token_stride,
    k_head_stride,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    head = tl.program_id(0)
    # The last queries see most keys: they go first, so that the device ends evenly.
    block = tl.num_programs(1) - 1 - tl.program_id(1)
    first = block * QUERIES
    t = first + tl.arange(0, QUERIES)
    there = t < num_queries
    d = tl.arange(0, D)
    q_at = t.to(tl.int64) * q_token_stride + head * q_head_stride
    q = tl.load(q_ptr + q_at[:, None] + d[None, :], mask=there[:, None], other=0.0)
    seen_to = tl.load(positions_ptr + t, mask=there, other=0).to(tl.int32)
    seen_by_all = tl.load(positions_ptr + first).to(tl.int32) + 1
    last = tl.minimum(first + QUERIES, num_queries) - 1
    end = tl.load(positions_ptr + last).to(tl.int32) + 1
    unmasked = seen_by_all // KEYS * KEYS
    kv_at = (head // GROUP) * k_head_stride
    tensors = (k_ptr + kv_at, v_ptr + kv_at, k_token_stride)
    state = (
        tl.zeros([QUERIES, D], tl.float32),
        tl.zeros([QUERIES], tl.float32),
        tl.full([QUERIES], -float("inf"), tl.float32),
    )
    state = _read_keys(state, q, tensors, (0, unmasked), seen_to, scale, False, D, KEYS)
    state = _read_keys(state, q, tensors, (unmasked, end), seen_to, scale, True, D, KEYS)
    out, total, _ = state
    out_at = (t.to(tl.int64) * HEADS + head)[:, None] * D + d[None, :]
    answer = (out / total[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + out_at, answer, mask=there[:, None])
