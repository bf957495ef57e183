"""Splits the fused product of queries, keys and values, norms and rotates heads, in one launch.

Keys and values go straight to where they stay. Everything between the product and its rounded
result is float32.

Shapes: T tokens, H query heads, G KV heads, D head size, X width of the product.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from shared.errors import ConfigError
from shared.model.exact_attention import HEAD_SIZES


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeadTargets:
    """Where the heads of a product go; [T, heads, D] each, all contiguous. At least one is there.

    The product holds queries, keys, values in this order, of those that are there.
    """

    q_THD: Tensor | None = None
    """Rotated queries."""
    kv_TGD: tuple[Tensor, Tensor] | None = None
    """Rotated keys, and values."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeadNorms:
    """Norms of heads before they are rotated (Qwen3)."""

    q_D: Tensor
    """Scale of the queries' norm."""
    k_D: Tensor
    """Scale of the keys' norm."""
    eps: float
    """Added to the mean square."""


def rotate_heads(
    product_TX: Tensor,
    cos_sin_TD: tuple[Tensor, Tensor],
    *,
    to: HeadTargets,
    norms: HeadNorms | None = None,
) -> None:
    """Writes the heads of `product_TX` (contiguous) to their targets.

    Args:
        product_TX: bias included.
        cos_sin_TD: cosines and sines of the tokens; both halves of a row are equal.
        to: where heads go.
        norms: of queries and keys, if the model has them.

    Raises:
        ConfigError: a head size that the kernel was not written for.
    """
    cos_TD, sin_TD = cos_sin_TD
    tokens, head_dim = cos_TD.shape
    if head_dim not in HEAD_SIZES:
        raise ConfigError(
            f"rotation on Triton takes head sizes 16 to 256 in powers of two, not {head_dim}: use "
            "the torch backend"
        )
    if tokens == 0:
        return
    # A head that is not there has no pointer; the product stands in and is never written.
    q_THD = product_TX if to.q_THD is None else to.q_THD
    k_TGD, v_TGD = (product_TX, product_TX) if to.kv_TGD is None else to.kv_TGD
    heads = 0 if to.q_THD is None else q_THD.shape[1]
    kv_heads = 0 if to.kv_TGD is None else k_TGD.shape[1]
    _rotate_token[(tokens,)](
        product_TX,
        cos_TD,
        sin_TD,
        q_THD,
        k_TGD,
        v_TGD,
        cos_TD if norms is None else norms.q_D,
        cos_TD if norms is None else norms.k_D,
        0.0 if norms is None else norms.eps,
        cos_TD.stride(0),
        NORMED=norms is not None,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEADS_2=triton.next_power_of_2(max(1, heads)),
        KV_HEADS_2=triton.next_power_of_2(max(1, kv_heads)),
        D=head_dim,
        num_warps=4,
    )


@triton.jit
def _rotate_rows(
    source_ptr,
    target_ptr,
    cos,
    sin,
    scale_ptr,
    eps,
    NORMED: tl.constexpr,
    ROWS: tl.constexpr,
    ROWS_2: tl.constexpr,
    D: tl.constexpr,
):
    """Some heads of one token, which lie side by side in source and target."""
    HALF: tl.constexpr = D // 2
    r = tl.arange(0, HALF)
    row = tl.arange(0, ROWS_2)
    at = row[:, None] * D + r[None, :]
    there = (row < ROWS)[:, None]
    first = tl.load(source_ptr + at, mask=there, other=0.0).to(tl.float32)
    second = tl.load(source_ptr + at + HALF, mask=there, other=0.0).to(tl.float32)
    if NORMED:
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        factor = tl.rsqrt(squares / D + eps)[:, None]
        first = first * factor * tl.load(scale_ptr + r).to(tl.float32)[None, :]
        second = second * factor * tl.load(scale_ptr + HALF + r).to(tl.float32)[None, :]
    turned_first = first * cos - second * sin
    turned_second = second * cos + first * sin
    tl.store(target_ptr + at, turned_first.to(target_ptr.dtype.element_ty), mask=there)
    tl.store(target_ptr + at + HALF, turned_second.to(target_ptr.dtype.element_ty), mask=there)


@triton.jit
def _rotate_token(
    product_ptr,
    cos_ptr,
    sin_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    q_scale_ptr,
    k_scale_ptr,
    eps,
    table_stride,
    NORMED: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEADS_2: tl.constexpr,
    KV_HEADS_2: tl.constexpr,
    D: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    r = tl.arange(0, D // 2)
    cos = tl.load(cos_ptr + token * table_stride + r).to(tl.float32)[None, :]
    sin = tl.load(sin_ptr + token * table_stride + r).to(tl.float32)[None, :]
    source_ptr = product_ptr + token * ((HEADS + 2 * KV_HEADS) * D)
    if HEADS > 0:
        q_at = q_ptr + token * (HEADS * D)
        _rotate_rows(source_ptr, q_at, cos, sin, q_scale_ptr, eps, NORMED, HEADS, HEADS_2, D)
    if KV_HEADS > 0:
        source_ptr += HEADS * D
        k_at = k_ptr + token * (KV_HEADS * D)
        _rotate_rows(source_ptr, k_at, cos, sin, k_scale_ptr, eps, NORMED, KV_HEADS, KV_HEADS_2, D)
        row = tl.arange(0, KV_HEADS_2)
        at = row[:, None] * D + tl.arange(0, D)[None, :]
        there = (row < KV_HEADS)[:, None]
        values = tl.load(source_ptr + KV_HEADS * D + at, mask=there, other=0.0)
        tl.store(v_ptr + token * (KV_HEADS * D) + at, values, mask=there)
