"""Joins the pieces of a row's attention by their log-sum-exp, one program a query head.

Shapes: B rows, H query heads, D head size, N pieces. Logarithms are of base 2.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from decode_service.kernels.split_plan import SplitPlan, split_tokens

_TILE = 64
"""Pieces that are read together."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionOutput:
    """Where an attention writes; used again at every layer and step."""

    out_BHD: Tensor
    """In the dtype of the query."""
    lse_BH: Tensor
    """Log-sum-exp of each head's logits, float32, base 2."""
    part_out_BHND: Tensor
    """Results of the pieces, float32."""
    part_lse_BHN: Tensor
    """Their log-sum-exp, float32."""

    @classmethod
    def empty(cls, q_BHD: Tensor, plan: SplitPlan) -> "AttentionOutput":
        """Room for queries of this shape."""
        rows, heads, head_dim = q_BHD.shape
        parts, device = (rows, heads, plan.splits), q_BHD.device
        return cls(
            out_BHD=torch.empty_like(q_BHD, memory_format=torch.contiguous_format),
            lse_BH=torch.empty((rows, heads), dtype=torch.float32, device=device),
            part_out_BHND=torch.empty((*parts, head_dim), dtype=torch.float32, device=device),
            part_lse_BHN=torch.empty(parts, dtype=torch.float32, device=device),
        )


def merge_pieces(output: AttentionOutput, lengths_B: Tensor, plan: SplitPlan) -> None:
    """Fills `out_BHD` and `lse_BH` from the pieces; those that a row does not have are not read.

    A row of no tokens, as graphs pad batches with, gives zeros and a log-sum-exp of -inf.
    """
    rows, heads, head_dim = output.out_BHD.shape
    splits_2 = triton.next_power_of_2(plan.splits)
    _merge_head[(heads, rows)](
        output.part_out_BHND,
        output.part_lse_BHN,
        lengths_B,
        output.out_BHD,
        output.lse_BH,
        HEADS=heads,
        D=head_dim,
        BLOCK=plan.block,
        SPLITS=plan.splits,
        SPLITS_2=splits_2,
        TILE=min(_TILE, splits_2),
        num_warps=4,
    )


@triton.jit
def _merge_head(
    part_out_ptr,
    part_lse_ptr,
    lengths_ptr,
    out_ptr,
    lse_ptr,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLITS_2: tl.constexpr,
    TILE: tl.constexpr,
):
    head = tl.program_id(1) * HEADS + tl.program_id(0)
    length = tl.load(lengths_ptr + tl.program_id(1))
    tokens = split_tokens(length, SPLITS, BLOCK)
    pieces = (length + tokens - 1) // tokens
    first_part = head * SPLITS
    n = tl.arange(0, SPLITS_2)
    lse = tl.load(part_lse_ptr + first_part + n, mask=n < pieces, other=-float("inf"))
    top = tl.max(lse, 0)
    top = tl.where(pieces > 0, top, 0.0)
    total = tl.sum(tl.exp2(lse - top), 0)
    d = tl.arange(0, D)
    out = tl.zeros([D], tl.float32)
    for base in range(0, pieces, TILE):
        piece = base + tl.arange(0, TILE)
        there = piece < pieces
        share = tl.load(part_lse_ptr + first_part + piece, mask=there, other=-float("inf"))
        part_at = (first_part + piece).to(tl.int64)[:, None] * D + d[None, :]
        part = tl.load(part_out_ptr + part_at, mask=there[:, None], other=0.0)
        out += tl.sum(tl.exp2(share - top)[:, None] * part, 0)
    total = tl.where(pieces > 0, total, 1.0)
    tl.store(out_ptr + head.to(tl.int64) * D + d, (out / total).to(out_ptr.dtype.element_ty))
    tl.store(lse_ptr + head, tl.where(pieces > 0, top + tl.log2(total), -float("inf")))
