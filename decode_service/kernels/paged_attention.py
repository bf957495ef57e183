"""Attention of one query a row over the pages of its table: dense, and over a choice of pages.

A choice is nothing special: a table that lists fewer pages, with the length that is visible in
them. Each KV head of each row is cut into pieces (`split_plan`), one program each, and a second
launch merges them by their log-sum-exp. Entries of a table beyond its length are never read, nor
are slots beyond it in the last page, so free pages may hold anything.

On request every scaled logit is kept ("dump"), for the page scores of a Δ-layer. It is kept in
float16 relative to the largest logit of its piece's first block: what all keys of a row have in
common, as from a biased key projection, then costs no precision.

All logarithms here are of base 2. Shapes: B rows, H query heads, G KV heads, D head size, P pages
of the pool, S slots of a page, M table width, N pieces, T tokens.
"""

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from decode_service.kernels.merge_pieces import AttentionOutput, merge_pieces
from decode_service.kernels.split_plan import SplitPlan, split_tokens
from shared.errors import ConfigError
from shared.kv.geometry import PAGE_SIZE

LOG2_E = math.log2(math.e)

_LEAST_ROWS = 16
"""Rows of the smallest matrix product; a KV head's query heads are padded to it."""

HEAD_DIMS = (16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PageTables:
    """Which pages each row reads."""

    pages_BM: Tensor
    """Physical page numbers in reading order, int32."""
    lengths_B: Tensor
    """Visible tokens, int32; a row of 0 tokens gives zeros."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogitDump:
    """Logits of one layer's attention, as its kernel leaves them for `score_pages`."""

    logits_BHT: Tensor
    """float16, base 2, relative to `offsets_BHN` of the token's piece; T is a capacity."""
    offsets_BHN: Tensor
    """float32."""

    @classmethod
    def empty(cls, q_BHD: Tensor, plan: SplitPlan, *, tokens: int) -> "LogitDump":
        """Room for queries of this shape over `tokens` tokens; used again at every step."""
        rows, device = q_BHD.shape[:2], q_BHD.device
        return cls(
            logits_BHT=torch.empty((*rows, tokens), dtype=torch.float16, device=device),
            offsets_BHN=torch.empty((*rows, plan.splits), dtype=torch.float32, device=device),
        )


def paged_attention(
    q_BHD: Tensor,
    kv_PSGD: tuple[Tensor, Tensor],
    tables: PageTables,
    *,
    plan: SplitPlan,
    output: AttentionOutput,
    dump: LogitDump | None = None,
) -> None:
    """Softmax attention, scale 1 / sqrt(D), into `output`; nothing is allocated, nothing waits.

    Args:
        q_BHD: rotated queries, heads contiguous.
        kv_PSGD: rotated keys and values of one layer, strides alike, D contiguous.
        tables: pages and visible tokens of each row.
        plan: sizes; `output` and `dump` were made for it.
        output: is overwritten.
        dump: takes the logits of every token.

    Raises:
        ConfigError: a head size, a page size or strides that the kernel was not written for.
    """
    keys, values = kv_PSGD
    rows, heads, head_dim = q_BHD.shape
    kv_heads = keys.shape[2]
    _check(q_BHD, keys, values)
    logits = dump.logits_BHT if dump is not None else output.part_lse_BHN
    offsets = dump.offsets_BHN if dump is not None else output.part_lse_BHN
    group = heads // kv_heads
    _attend_piece[(kv_heads, plan.splits, rows)](
        q_BHD,
        keys,
        values,
        tables.pages_BM,
        tables.lengths_B,
        output.part_out_BHND,
        output.part_lse_BHN,
        logits,
        offsets,
        head_dim**-0.5 * LOG2_E,
        q_BHD.stride(0),
        keys.stride(0),
        keys.stride(1),
        keys.stride(2),
        tables.pages_BM.stride(0),
        logits.stride(1),
        HEADS=heads,
        GROUP=group,
        ROWS=max(_LEAST_ROWS, triton.next_power_of_2(group)),
        D=head_dim,
        BLOCK=plan.block,
        SPLITS=plan.splits,
        PAGE=PAGE_SIZE,
        DUMP=dump is not None,
        num_warps=plan.warps,
        num_stages=plan.stages,
    )
    merge_pieces(output, tables.lengths_B, plan)


def _check(q_BHD: Tensor, keys: Tensor, values: Tensor) -> None:
    heads, head_dim = q_BHD.shape[1:]
    problems = {
        f"a head size of {head_dim}": head_dim not in HEAD_DIMS,
        f"pages of {keys.shape[1]} slots": keys.shape[1] != PAGE_SIZE,
        f"{heads} query heads over {keys.shape[2]} KV heads": heads % keys.shape[2] != 0,
        "queries with gaps between heads": q_BHD.stride()[1:] != (head_dim, 1),
        "keys and values of unlike strides, or whose D has gaps": (
            keys.stride() != values.stride() or keys.stride(3) != 1
        ),
    }
    found = [name for name, wrong in problems.items() if wrong]
    if found:
        raise ConfigError(
            f"the Triton kernel does not read {found[0]}: it takes head sizes "
            f"{', '.join(map(str, HEAD_DIMS))} and pages of {PAGE_SIZE}; use the torch backend"
        )


@triton.jit
def _attend_tokens(
    q,
    kv,
    table_ptr,
    dump,
    bounds,
    scale,
    BLOCK: tl.constexpr,
    PAGE: tl.constexpr,
    DUMP: tl.constexpr,
):
    """One piece of a row: (out, total, top, offset), not yet divided by the total.

    `kv` is (keys, values, stride of a page, of a slot), `dump` (pointers and mask of its heads,
    both [ROWS, 1]), `bounds` (first token, end).
    """
    k_ptr, v_ptr, page_stride, slot_stride = kv
    dump_ptr, real = dump
    start, end = bounds
    ROWS: tl.constexpr = q.shape[0]
    D: tl.constexpr = q.shape[1]
    d = tl.arange(0, D)
    top = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    offset = tl.zeros([ROWS], tl.float32)
    out = tl.zeros([ROWS, D], tl.float32)
    for first in range(start, end, BLOCK):
        t = first + tl.arange(0, BLOCK)
        inside = t < end
        page = tl.load(table_ptr + t // PAGE, mask=inside, other=0)
        at = page.to(tl.int64) * page_stride + (t % PAGE) * slot_stride
        at = at[:, None] + d[None, :]
        k = tl.load(k_ptr + at, mask=inside[:, None], other=0.0)
        logits = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        logits = tl.where(inside[None, :], logits, -float("inf"))
        block_top = tl.max(logits, 1)
        if DUMP:
            offset = tl.where(first == start, block_top, offset)
            relative = (logits - offset[:, None]).to(tl.float16)
            tl.store(dump_ptr + t[None, :], relative, mask=real & inside[None, :])
        v = tl.load(v_ptr + at, mask=inside[:, None], other=0.0)
        new_top = tl.maximum(top, block_top)
        keep = tl.exp2(top - new_top)
        p = tl.exp2(logits - new_top[:, None])
        total = total * keep + tl.sum(p, 1)
        out = tl.dot(p.to(v.dtype), v, out * keep[:, None], input_precision="ieee")
        top = new_top
    return out, total, top, offset


@triton.jit
def _attend_piece(
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    lengths_ptr,
    out_ptr,
    lse_ptr,
    dump_ptr,
    offset_ptr,
    scale,
    q_row_stride,
    page_stride,
    slot_stride,
    head_stride,
    table_stride,
    dump_stride,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    PAGE: tl.constexpr,
    DUMP: tl.constexpr,
):
    # KV heads vary fastest: their keys of one token lie side by side.
    kv_head, piece, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths_ptr + row)
    tokens = split_tokens(length, SPLITS, BLOCK)
    start = piece * tokens
    end = tl.minimum(start + tokens, length)
    if start >= end:
        return
    r = tl.arange(0, ROWS)
    d = tl.arange(0, D)
    real = (r < GROUP)[:, None]
    head = row * HEADS + kv_head * GROUP + r
    q_at = row.to(tl.int64) * q_row_stride + (kv_head * GROUP + r) * D
    q = tl.load(q_ptr + q_at[:, None] + d[None, :], mask=real, other=0.0)
    kv_at = kv_head * head_stride
    kv = (k_ptr + kv_at, v_ptr + kv_at, page_stride, slot_stride)
    dump = (dump_ptr + head.to(tl.int64)[:, None] * dump_stride, real)
    table = table_ptr + row * table_stride
    out, total, top, offset = _attend_tokens(
        q, kv, table, dump, (start, end), scale, BLOCK, PAGE, DUMP
    )
    part = head * SPLITS + piece
    part_at = part.to(tl.int64)[:, None] * D + d[None, :]
    tl.store(out_ptr + part_at, out / total[:, None], mask=real)
    tl.store(lse_ptr + part, top + tl.log2(total), mask=r < GROUP)
    if DUMP:
        tl.store(offset_ptr + part, offset, mask=r < GROUP)
