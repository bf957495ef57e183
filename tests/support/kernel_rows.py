"""Paged rows for tests of kernels: scattered pages, everything that no row holds is NaN.

Run on a GPU these tests launch the kernels as they are; elsewhere Triton's interpreter runs them,
which computes bfloat16 products wrongly, so no test uses that type.
"""

import os
from dataclasses import dataclass

import torch
from torch import Tensor

from decode_service.kernels.merge_pieces import AttentionOutput
from decode_service.kernels.paged_attention import (
    LogitDump,
    PageTables,
    paged_attention,
)
from decode_service.kernels.split_plan import SplitPlan
from shared.kv.geometry import PAGE_SIZE, pages_for

DEVICE = torch.device("cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PagedRows:
    """Queries, a pool of pages and the tables of a batch."""

    q_BHD: Tensor
    keys_PSGD: Tensor
    values_PSGD: Tensor
    tables: PageTables
    lengths: tuple[int, ...]

    def row_kv(self, row: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one row's visible tokens, [T, G, D], collected one by one."""
        places = [
            (int(self.tables.pages_BM[row, t // PAGE_SIZE]), t % PAGE_SIZE)
            for t in range(self.lengths[row])
        ]
        empty = self.keys_PSGD.new_empty((0, *self.keys_PSGD.shape[2:]))
        keys = [self.keys_PSGD[place] for place in places]
        values = [self.values_PSGD[place] for place in places]
        return (torch.stack(keys), torch.stack(values)) if places else (empty, empty)


def make_rows(
    lengths: tuple[int, ...],
    *,
    kv_heads: int,
    group: int,
    head_dim: int,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    key_bias: float = 0.0,
) -> PagedRows:
    """A batch whose rows have `lengths` tokens, on pages in random order.

    Args:
        lengths: visible tokens of each row.
        kv_heads: G.
        group: query heads of a KV head.
        head_dim: D.
        dtype: of queries, keys and values.
        seed: of everything random.
        key_bias: added to the first component of every key, and that of queries set to 1: what all
            logits of a row then have in common is `key_bias` / sqrt(D).
    """
    generator = torch.Generator().manual_seed(seed)
    counts = [pages_for(length) for length in lengths]
    width = max(*counts, 1) + 1
    num_pages = sum(counts) + 3
    order = torch.randperm(num_pages, generator=generator)
    free_page = int(order[-1])
    pages_BM = torch.full((len(lengths), width), free_page, dtype=torch.int32)
    shape = (num_pages, PAGE_SIZE, kv_heads, head_dim)
    keys, values = torch.full(shape, torch.nan), torch.full(shape, torch.nan)
    taken = 0
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        pages = order[taken : taken + count]
        taken += count
        pages_BM[row, :count] = pages.int()
        for t in range(length):
            place = int(pages[t // PAGE_SIZE]), t % PAGE_SIZE
            keys[place] = torch.randn((kv_heads, head_dim), generator=generator)
            values[place] = torch.randn((kv_heads, head_dim), generator=generator)
    q_BHD = torch.randn((len(lengths), kv_heads * group, head_dim), generator=generator)
    if key_bias:
        keys[..., 0] += key_bias
        q_BHD[..., 0] = 1.0
    return PagedRows(
        q_BHD=q_BHD.to(DEVICE, dtype),
        keys_PSGD=keys.to(DEVICE, dtype),
        values_PSGD=values.to(DEVICE, dtype),
        tables=PageTables(
            pages_BM=pages_BM.to(DEVICE),
            lengths_B=torch.tensor(lengths, dtype=torch.int32, device=DEVICE),
        ),
        lengths=lengths,
    )


def attend(rows: PagedRows, plan: SplitPlan, *, dump: LogitDump | None = None) -> AttentionOutput:
    """The kernel's output, into tensors that were full of NaN."""
    output = AttentionOutput.empty(rows.q_BHD, plan)
    for tensor in (output.out_BHD, output.lse_BH, output.part_out_BHND, output.part_lse_BHN):
        tensor.fill_(torch.nan)
    kv_PSGD = (rows.keys_PSGD, rows.values_PSGD)
    paged_attention(rows.q_BHD, kv_PSGD, rows.tables, plan=plan, output=output, dump=dump)
    return output


def poisoned_dump(rows: PagedRows, plan: SplitPlan) -> LogitDump:
    """A dump for `rows`, full of NaN."""
    width = rows.tables.pages_BM.shape[1] * PAGE_SIZE
    dump = LogitDump.empty(rows.q_BHD, plan, tokens=width)
    dump.logits_BHT.fill_(torch.nan)
    dump.offsets_BHN.fill_(torch.nan)
    return dump
