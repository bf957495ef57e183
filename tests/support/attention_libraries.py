"""Stand-ins of flash-attn and FlashInfer on a CPU, for what is around the real ones.

Names, arguments and shapes are those of flash-attn-4 4.0.0b36, flash-attn 2.8.3 and FlashInfer
0.6.6, as far as they are called; results are PyTorch's. Only a GPU runs the libraries themselves:
`loadtest.micro.attention_libraries` compares and times them there.
"""

import importlib.machinery
import math
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from shared.kv.geometry import PAGE_SIZE
from shared.model.plain_attention import plain_attention


def install(monkeypatch: pytest.MonkeyPatch, **modules: dict[str, object]) -> None:
    """Makes modules importable for one test.

    Args:
        monkeypatch: undoes it.
        modules: names in each; `__` in a module's name stands for a dot.
    """
    for given, names in modules.items():
        name = given.replace("__", ".")
        module = ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)


def flash_attn_4(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, return_lse: bool = False
) -> tuple[Tensor, Tensor]:
    """`flash_attn.cute.flash_attn_func` as it answers with `return_lse`."""
    assert causal
    assert return_lse
    out_THD, lse_TH = plain_attention(q[0], k[0], v[0])
    return out_THD[None].to(q.dtype), lse_TH.t()[None]


def flash_attn_2(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, return_attn_probs: bool = False
) -> tuple[Tensor, Tensor, None]:
    """`flash_attn.flash_attn_interface.flash_attn_func` as it answers with `return_attn_probs`."""
    assert causal
    assert return_attn_probs
    out_THD, lse_TH = plain_attention(q[0], k[0], v[0])
    return out_THD[None].to(q.dtype), lse_TH.t()[None], None


def single_prefill_with_kv_cache(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, return_lse: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """`flashinfer.single_prefill_with_kv_cache`: log-sum-exp of base 2."""
    assert causal
    out_THD, lse_TH = plain_attention(q, k, v)
    out_THD = out_THD.to(q.dtype)
    return (out_THD, lse_TH / math.log(2)) if return_lse else out_THD


class BatchDecodeWithPagedKVCacheWrapper:
    """`flashinfer.BatchDecodeWithPagedKVCacheWrapper` with its buffers for CUDA graphs.

    As there, `run` finds the rows in the buffers alone, and is wrong without a plan of these rows.
    """

    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        *,
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: Tensor,
        paged_kv_indices_buffer: Tensor,
        paged_kv_last_page_len_buffer: Tensor,
    ) -> None:
        assert float_workspace_buffer.dtype is torch.uint8
        assert kv_layout == "NHD"
        assert use_cuda_graph
        assert use_tensor_cores
        self._starts = paged_kv_indptr_buffer
        self._pages = paged_kv_indices_buffer
        self._last = paged_kv_last_page_len_buffer
        self._heads: tuple[int, int, int] | None = None
        self._planned: list[int] = []

    def reset_workspace_buffer(
        self, float_workspace_buffer: Tensor, int_workspace_buffer: Tensor
    ) -> None:
        """Takes other memory."""
        assert float_workspace_buffer.dtype is int_workspace_buffer.dtype is torch.uint8

    def plan(
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        *,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        **types: Any,
    ) -> None:
        """Copies what it is told; all of it lies on the host but `indices`."""
        assert page_size == PAGE_SIZE
        assert set(types) == {"q_data_type", "kv_data_type"}
        assert len(indices) == int(indptr[-1]) <= len(self._pages)
        assert len(last_page_len) == len(self._last), "the batch size is fixed"
        self._starts.copy_(indptr)
        self._last.copy_(last_page_len)
        self._heads = (num_qo_heads, num_kv_heads, head_dim)
        self._planned = indptr.tolist()

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], *, out: Tensor) -> Tensor:
        """Attention of every row; zeros for one of no pages."""
        keys, values = paged_kv_cache
        assert self._heads == (*q.shape[1:2], *keys.shape[2:])
        assert self._planned == self._starts.tolist(), "planned for other rows"
        starts = self._planned
        for row in range(len(q)):
            pages = self._pages[starts[row] : starts[row + 1]].long()
            if len(pages) == 0:
                out[row] = 0
                continue
            tokens = (len(pages) - 1) * PAGE_SIZE + int(self._last[row])
            k, v = (memory[pages].flatten(0, 1)[:tokens] for memory in (keys, values))
            out[row] = plain_attention(q[row : row + 1], k, v)[0][0].to(out.dtype)
        return out
