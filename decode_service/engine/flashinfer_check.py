"""Compares FlashInfer's decode attention with float32 when a worker starts, as a step calls it.

Shapes: B rows, H query heads, G KV heads, D head size, P pages of the pool, S slots of a page, T
tokens.
"""

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from decode_service.engine.attention import TorchDecodeAttention
from decode_service.kernels.flashinfer_paged import FlashInferPaged, PagedHeads, make_workspace
from decode_service.kernels.paged_attention import PageTables
from decode_service.sparsity.base import Evidence
from shared.kv.geometry import PAGE_SIZE, pages_for
from shared.model.config import ModelConfig
from shared.model.current_device import computing_on
from shared.model.kernel_check import LARGEST_ERROR, said

_LENGTHS = (1, 0, 16, 333, 2000)
"""Tokens of the rows: an empty seat, a whole page, one that is cut into pieces."""


class AttendingModel(Protocol):
    """What the comparison asks of a model."""

    @property
    def config(self) -> ModelConfig:
        """Its heads."""

    @property
    def dtype(self) -> torch.dtype:
        """Of its KV."""

    @property
    def device(self) -> torch.device:
        """Where it is."""


def flashinfer_fault(model: AttendingModel) -> str:
    """What is wrong with the library's results for a model's heads, or nothing.

    Its kernel is compiled here where that was never done, which takes half a minute and needs the
    CUDA compiler.
    """
    heads = PagedHeads(
        num_heads=model.config.num_heads,
        num_kv_heads=model.config.num_kv_heads,
        head_dim=model.config.head_dim,
        dtype=model.dtype,
    )
    with computing_on(model.device):
        try:
            off = _difference(heads, model.device)
        except Exception as error:  # noqa: BLE001  a library may end in an error of its own kind
            return said(error)
    if not off < LARGEST_ERROR:
        return f"its output is {off:.2g} off float32, {LARGEST_ERROR} is allowed"
    return ""


@torch.inference_mode()
def _difference(heads: PagedHeads, device: torch.device) -> float:
    """Largest difference over the largest value, over all rows."""
    generator = torch.Generator(device).manual_seed(1)
    wide = pages_for(max(_LENGTHS))
    rows = len(_LENGTHS)
    size = (2, rows * wide, PAGE_SIZE, heads.num_kv_heads, heads.head_dim)
    # As in a cache, keys and values are apart, and pages lie in any order.
    memory = torch.randn(size, generator=generator, device=device).to(heads.dtype)
    order = torch.randperm(rows * wide, generator=generator, device=device).int()
    tables = PageTables(
        pages_BM=order.view(rows, wide),
        lengths_B=torch.tensor(_LENGTHS, dtype=torch.int32, device=device),
    )
    q_BHD = torch.randn(
        (rows, heads.num_heads, heads.head_dim), generator=generator, device=device
    ).to(heads.dtype)
    paged = FlashInferPaged(
        heads,
        rows=rows,
        width=wide,
        workspace=make_workspace(heads, max_rows=rows, device=device),
    )
    out_BHD = torch.full_like(q_BHD, torch.nan)
    paged.plan(np.array(_LENGTHS, dtype=np.int32))
    paged.gather(tables)
    paged.attend(q_BHD, (memory[0], memory[1]), out_BHD=out_BHD)
    differences = [
        _row_difference(out_BHD[row], q_BHD[row], memory, tables.pages_BM[row], tokens=tokens)
        for row, tokens in enumerate(_LENGTHS)
    ]
    return float(torch.stack(differences).max())  # NaN if one is


def _row_difference(
    out_HD: Tensor, q_HD: Tensor, memory: Tensor, pages_M: Tensor, *, tokens: int
) -> Tensor:
    if tokens == 0:
        return out_HD.float().abs().max()  # zeros were wanted
    keys_TGD, values_TGD = memory[:, pages_M.long()].flatten(1, 2)[:, :tokens].float()
    wanted = TorchDecodeAttention().attend(
        q_HD.float(), keys_TGD, values_TGD, evidence=Evidence.NONE
    )
    return (out_HD.float() - wanted.out_HD).abs().max() / wanted.out_HD.abs().max()
