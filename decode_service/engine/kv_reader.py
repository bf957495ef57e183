"""Turns planned reads into key and value tensors.

Shapes: G KV heads, R rows of a read, D head size, T slots read, P pages read, S slots of a pool.
"""

import math

import torch

from decode_service.engine.kv_cache import PagedKvCache
from decode_service.engine.kv_read import KvRead
from shared.kv.geometry import PAGE_SIZE


class KvReader:
    """Reads a run of pages in place and gathers scattered slots into buffers that it keeps.

    A gathered tensor is valid until the next call.

    Args:
        cache: the pages.
    """

    def __init__(self, cache: PagedKvCache) -> None:
        self._cache = cache
        self._buffers = self._allocate(0)
        self._shaped: list[torch.Tensor] = list(self._buffers.unbind(0))

    def view(self, layer: int, read: KvRead) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one row in one layer: [T, G, D], or [T, R, D] where heads choose."""
        pool = self._cache.pool_of(layer)
        if read.first_slot is not None:
            keys, values = pool.flat(layer)
            return (
                keys.narrow(0, read.first_slot, read.slots),
                values.narrow(0, read.first_slot, read.slots),
            )
        if read.rows > 1:
            keys, values = pool.flat(layer)
            return (
                self._gather_heads(keys, read, buffer=0),
                self._gather_heads(values, read, buffer=1),
            )
        keys, values = pool.paged(layer) if read.unit == PAGE_SIZE else pool.flat(layer)
        return self._gather(keys, read, buffer=0), self._gather(values, read, buffer=1)

    def keys(self, layer: int, read: KvRead, *, first_page: int) -> torch.Tensor:
        """Keys of a whole row from a page on, [T - 16 * first_page, G, D]."""
        pool, skipped = self._cache.pool_of(layer), first_page * PAGE_SIZE
        if read.first_slot is not None:
            first, slots = read.first_slot + skipped, read.slots - skipped
            return pool.flat(layer)[0].narrow(0, first, slots)
        rest = KvRead(
            slots=read.slots - skipped,
            first_slot=None,
            table=read.table[first_page:],
            unit=PAGE_SIZE,
        )
        return self._gather(pool.paged(layer)[0], rest, buffer=0)

    def _gather(self, source: torch.Tensor, read: KvRead, *, buffer: int) -> torch.Tensor:
        """Pages of a [pages, 16, G, D] source or slots of a [S, G, D] source, laid end to end."""
        out = self._buffer(buffer, read.table.shape[0], *source.shape[1:])
        torch.index_select(source, 0, read.table, out=out)
        return out.flatten(0, 1).narrow(0, 0, read.slots) if read.unit == PAGE_SIZE else out

    def _gather_heads(self, source: torch.Tensor, read: KvRead, *, buffer: int) -> torch.Tensor:
        """Vectors of single heads of a [S, G, D] source; each row is contiguous in memory."""
        out = self._buffer(buffer, read.table.shape[0], source.shape[-1])
        torch.index_select(source.flatten(0, 1), 0, read.table, out=out)
        return out.view(read.rows, read.slots, -1).transpose(0, 1)

    def _buffer(self, number: int, *shape: int) -> torch.Tensor:
        """One of the two buffers in a shape; layers that follow each other often want the same."""
        if self._shaped[number].shape != shape:
            wanted = math.prod(shape)
            if wanted > self._buffers.shape[1]:
                self._buffers = self._allocate(2 * wanted)
                self._shaped = list(self._buffers.unbind(0))
            self._shaped[number] = self._buffers[number, :wanted].view(shape)
        return self._shaped[number]

    def _allocate(self, numbers: int) -> torch.Tensor:
        dtype = getattr(torch, self._cache.geometry.dtype)
        return torch.empty((2, numbers), dtype=dtype, device=self._cache.device)


class LayerKeys:
    """One row's keys in one layer, for its policy (`sparsity.base.LayerKv`).

    One object serves every layer and row in turn: `at` points it elsewhere.

    Args:
        reader: gathers keys that do not lie in one run.
    """

    def __init__(self, reader: KvReader) -> None:
        self._reader = reader
        self._layer = 0
        self._whole: KvRead | None = None

    def at(self, layer: int, whole: KvRead) -> "LayerKeys":
        """Turns to another row or layer; `whole` is the read of all its slots."""
        self._layer, self._whole = layer, whole
        return self

    @property
    def length(self) -> int:
        """Slots T."""
        return self._row.slots

    def keys(self, *, first_page: int = 0) -> torch.Tensor:
        """Rotated keys of the slots from a logical page on, [T - 16 * first_page, G, D]."""
        return self._reader.keys(self._layer, self._row, first_page=first_page)

    @property
    def _row(self) -> KvRead:
        assert self._whole is not None, "turned to a layer first"
        return self._whole
