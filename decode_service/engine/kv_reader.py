"""Turns planned reads into key and value tensors.

Shapes: G KV heads, D head size, T slots read, P pages read.
"""

import torch

from decode_service.engine.kv_cache import PagedKvCache
from decode_service.engine.row_step import KvRead
from shared.kv.geometry import PAGE_SIZE


class KvReader:
    """Reads a run of pages in place and gathers scattered pages into buffers that it keeps.

    A gathered tensor is valid until the next call.

    Args:
        cache: the pages.
    """

    def __init__(self, cache: PagedKvCache) -> None:
        self._cache = cache
        self._buffers = self._allocate(0)

    def view(self, layer: int, read: KvRead) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [T, G, D] of one row in one layer."""
        pool = self._cache.pool_of(layer)
        if read.first_slot is not None:
            keys, values = pool.flat(layer)
            return (
                keys.narrow(0, read.first_slot, read.slots),
                values.narrow(0, read.first_slot, read.slots),
            )
        keys, values = pool.paged(layer)
        key_buffer, value_buffer = self._buffers_of(read.table_P.shape[0])
        torch.index_select(keys, 0, read.table_P, out=key_buffer)
        torch.index_select(values, 0, read.table_P, out=value_buffer)
        return (
            key_buffer.flatten(0, 1).narrow(0, 0, read.slots),
            value_buffer.flatten(0, 1).narrow(0, 0, read.slots),
        )

    def _buffers_of(self, num_pages: int) -> tuple[torch.Tensor, torch.Tensor]:
        if num_pages > self._buffers.shape[1]:
            self._buffers = self._allocate(2 * num_pages)
        return self._buffers[0, :num_pages], self._buffers[1, :num_pages]

    def _allocate(self, num_pages: int) -> torch.Tensor:
        geometry = self._cache.geometry
        shape = (2, num_pages, PAGE_SIZE, geometry.num_kv_heads, geometry.head_dim)
        return torch.empty(shape, dtype=getattr(torch, geometry.dtype), device=self._cache.device)
