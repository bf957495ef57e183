"""FlashInfer's attention of one query a row over all pages of the row, at one number of rows.

The library reads pages from one list without gaps and divides its work by a plan that the host
makes from the rows' lengths before every step. Its wrapper for CUDA graphs keeps all of that in
buffers that stay where they are, so that `gather` and `attend` can be captured once, while `plan`
runs before every replay: it copies a few kilobytes to the device and waits for nothing.

Shapes: B rows, H query heads, G KV heads, D head size, P pages of the pool, S slots of a page, M
table width.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decode_service.kernels.paged_attention import PageTables
from shared.kv.geometry import PAGE_SIZE

_QUERY_TILES = (16, 64, 128)
"""Query rows of its tiles: the first that takes all query heads of a KV head, or the last."""

_LEAST_PLAN_BYTES = 1 << 18
"""Room for a plan of up to about 4,000 rows."""

_TILE_BYTES, _ROW_BYTES = 17, 8
"""What a plan holds of a tile, and of a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedHeads:
    """Heads of a model that attends to pages."""

    num_heads: int
    """H."""
    num_kv_heads: int
    """G; divides H."""
    head_dim: int
    """D."""
    dtype: torch.dtype
    """Of queries, keys and values."""


def make_workspace(heads: PagedHeads, *, max_rows: int, device: torch.device) -> Tensor:
    """Memory for results of pieces of rows, which all steps share: they never run side by side.

    Args:
        heads: of the model.
        max_rows: rows of one step at most.
        device: where the steps run.
    """
    tile = _tile(heads)
    tiles = _most_tiles(heads, rows=max_rows, device=device)
    a_tile = tile * (heads.head_dim + 1) * torch.float32.itemsize
    # It wants zeros at first use; a megabyte is for what it aligns.
    return torch.zeros(
        heads.num_heads * tiles * a_tile + (1 << 20), dtype=torch.uint8, device=device
    )


def plan_bytes(heads: PagedHeads, *, rows: int, device: torch.device) -> int:
    """Room for the plan of a step: the library refuses at that step what does not fit.

    Args:
        heads: of the model.
        rows: of the step.
        device: where it runs.
    """
    tiles = _most_tiles(heads, rows=rows, device=device)
    # Twice what it holds is more than it aligns.
    return max(_LEAST_PLAN_BYTES, 2 * (_TILE_BYTES * tiles + _ROW_BYTES * (rows + 1)))


def _tile(heads: PagedHeads) -> int:
    """Query rows of a tile."""
    group = heads.num_heads // heads.num_kv_heads
    return next(rows for rows in _QUERY_TILES if group <= rows or rows == _QUERY_TILES[-1])


def _most_tiles(heads: PagedHeads, *, rows: int, device: torch.device) -> int:
    """Two blocks a multiprocessor, and no fewer than its bound for rows that nothing cuts."""
    on_gpu = device.type == "cuda"
    multiprocessors = (
        torch.cuda.get_device_properties(device).multi_processor_count if on_gpu else 1
    )
    group = heads.num_heads // heads.num_kv_heads
    uncut = -(-rows * group // _tile(heads)) + rows
    return max(2 * multiprocessors // heads.num_kv_heads, uncut)


class FlashInferPaged:
    """The attention of steps of `rows` rows whose tables are `width` pages wide.

    Args:
        heads: of the model.
        rows: B.
        width: M.
        workspace: from `make_workspace`.
    """

    def __init__(self, heads: PagedHeads, *, rows: int, width: int, workspace: Tensor) -> None:
        # An extra of GPU workers; nothing imports it before it was asked for.
        from flashinfer import BatchDecodeWithPagedKVCacheWrapper  # noqa: PLC0415

        self._heads = heads
        self._rows = rows
        device = workspace.device
        pinned = device.type == "cuda"
        self._starts_B1 = torch.zeros(rows + 1, dtype=torch.int32, device=device)
        self._last_B = torch.zeros(rows, dtype=torch.int32, device=device)
        # One place more than pages: entries of the tables that no row has go there.
        self._pages = torch.zeros(rows * width + 1, dtype=torch.int32, device=device)
        self._columns_M = torch.arange(width, dtype=torch.int32, device=device)
        self._host_starts_B1 = torch.zeros(rows + 1, dtype=torch.int32, pin_memory=pinned)
        self._host_last_B = torch.zeros(rows, dtype=torch.int32, pin_memory=pinned)
        self._sent: Any = torch.cuda.Event() if pinned else None
        self._library: Any = BatchDecodeWithPagedKVCacheWrapper(
            workspace,
            "NHD",
            use_cuda_graph=True,
            use_tensor_cores=True,
            paged_kv_indptr_buffer=self._starts_B1,
            paged_kv_indices_buffer=self._pages,
            paged_kv_last_page_len_buffer=self._last_B,
        )
        # It would take 8 MiB on the device and on the host for every number of rows and pages.
        nbytes = plan_bytes(heads, rows=rows, device=device)
        plan = torch.empty(nbytes, dtype=torch.uint8, device=device)
        self._library.reset_workspace_buffer(workspace, plan)

    def plan(self, lengths_B: npt.NDArray[np.integer[Any]]) -> None:
        """Divides the work of a step; before it is enqueued, in the same stream, outside a graph.

        Args:
            lengths_B: visible tokens of each row, as the tables on the device will say; on the
                host.
        """
        # The library writes its plan into pinned memory, which the copy of the last one may still
        # be reading; nearly always that is long done.
        if self._sent is not None:
            self._sent.synchronize()
        pages_B = -(-lengths_B // PAGE_SIZE)
        starts_B1 = self._host_starts_B1.numpy()
        starts_B1[1:] = np.cumsum(pages_B)
        self._host_last_B.numpy()[:] = lengths_B - np.maximum(pages_B - 1, 0) * PAGE_SIZE
        heads = self._heads
        self._library.plan(
            self._host_starts_B1,
            self._pages[: int(starts_B1[-1])],  # what `gather` fills; given only for its length
            self._host_last_B,
            num_qo_heads=heads.num_heads,
            num_kv_heads=heads.num_kv_heads,
            head_dim=heads.head_dim,
            page_size=PAGE_SIZE,
            q_data_type=heads.dtype,
            kv_data_type=heads.dtype,
        )
        if self._sent is not None:
            self._sent.record()

    def gather(self, tables: PageTables) -> None:
        """Lists the rows' pages without gaps; enqueued once a step, after its plan."""
        counts_B1 = (tables.lengths_B[:, None] + (PAGE_SIZE - 1)) // PAGE_SIZE
        places_BM = torch.where(
            self._columns_M < counts_B1,
            self._starts_B1[:-1, None] + self._columns_M,
            self._pages.shape[0] - 1,
        )
        pages_BM = tables.pages_BM[:, : self._columns_M.shape[0]]
        self._pages.scatter_(0, places_BM.flatten().long(), pages_BM.flatten())

    def attend(self, q_BHD: Tensor, kv_PSGD: tuple[Tensor, Tensor], *, out_BHD: Tensor) -> None:
        """Softmax attention over whole rows, scale 1 / sqrt(D), into `out_BHD`.

        Args:
            q_BHD: rotated queries.
            kv_PSGD: rotated keys and values of one layer, strides alike, D contiguous.
            out_BHD: is overwritten; a row of no tokens gives zeros.
        """
        self._library.run(q_BHD, kv_PSGD, out=out_BHD)
