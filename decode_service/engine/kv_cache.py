"""Paged KV memory of a decode worker, in two length groups.

Layers 0..whole_layers-1 (FRONT) hold every prompt token, the others (REST) hold the kept ones, so
a row has two lengths and two page tables. All layers of a group use the same page numbers.

Shapes: G KV heads, D head size, N prompt slots, S slots of a pool (pages times 16).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import torch

from shared.errors import InternalError, ManifestError
from shared.kv.geometry import PAGE_SIZE, KvGeometry, pages_for
from shared.kv.pool import PagePool


class LengthGroup(Enum):
    """Which of the two lengths a layer has."""

    FRONT = 0
    REST = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupPages:
    """Pages of one row in one group."""

    pages: tuple[int, ...]
    """Physical pages in logical order."""
    start: int | None
    """First page when they form one ascending run, so that the row can be read without a copy."""
    table: torch.Tensor
    """The same numbers as an int64 tensor on the cache's device."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SequencePages:
    """Pages of one row, its growth included."""

    front: GroupPages
    """Pages in layers 0..whole_layers-1."""
    rest: GroupPages
    """Pages in the other layers."""
    free_since: torch.cuda.Event | None = None
    """After what was enqueued for earlier rows of these pages; a stream that is not the engine's
    waits for it before it writes. None where calls return when their work is done."""

    def of(self, group: LengthGroup) -> GroupPages:
        """Pages of one group."""
        return self.front if group is LengthGroup.FRONT else self.rest


class KvPool:
    """Memory of one group: [layers, 2, pages, 16, G, D], and who holds which page."""

    def __init__(
        self, geometry: KvGeometry, *, layers: range, num_pages: int, device: torch.device
    ) -> None:
        self.layers = layers
        self.pages = PagePool(max(num_pages, 1))
        shape = (2, self.pages.num_pages, PAGE_SIZE, geometry.num_kv_heads, geometry.head_dim)
        dtype = getattr(torch, geometry.dtype)
        self.memory = torch.empty((len(layers), *shape), dtype=dtype, device=device)
        self._paged = [layer.unbind(0) for layer in self.memory]
        self._flat = [(keys.flatten(0, 1), values.flatten(0, 1)) for keys, values in self._paged]

    def paged(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one model layer as [pages, 16, G, D] views."""
        keys, values = self._paged[layer - self.layers.start]
        return keys, values

    def flat(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one model layer as [S, G, D] views."""
        return self._flat[layer - self.layers.start]

    def allocate(self, tokens: int) -> GroupPages | None:
        """Takes the pages of `tokens` slots, or None when there are too few."""
        pages = self.pages.allocate(self.pages_needed(tokens))
        return None if pages is None else page_table(pages, self.memory.device)

    def shrink(self, held: GroupPages, *, by: int) -> GroupPages:
        """Gives the last `by` pages back; returns those that are left."""
        assert 0 <= by < len(held.pages), "a row keeps a page"
        self.pages.free(held.pages[len(held.pages) - by :])
        return page_table(held.pages[: len(held.pages) - by], self.memory.device)

    def pages_needed(self, tokens: int) -> int:
        """Pages of `tokens` slots; a group without layers needs none."""
        return pages_for(tokens) if self.layers else 0

    def poison(self, table: torch.Tensor) -> None:
        """Fills pages with NaN, so that a read of freed memory shows."""
        self.memory[:, :, table] = torch.nan


class PagedKvCache:
    """KV pages of all rows. Not locked: one owner reserves and releases.

    Args:
        geometry: shape of the model's cache.
        whole_layers: layers 0..whole_layers-1 form the FRONT group.
        pages_front: pages in each layer of the FRONT group.
        pages_rest: pages in each layer of the REST group.
        device: where the memory is.
        poison: fill free pages with NaN; a leak detector for tests and debugging.
    """

    def __init__(
        self,
        geometry: KvGeometry,
        *,
        whole_layers: int,
        pages_front: int,
        pages_rest: int,
        device: torch.device | str = "cpu",
        poison: bool = False,
    ) -> None:
        assert 0 <= whole_layers <= geometry.num_layers, "whole layers are layers of the model"
        self.geometry = geometry
        self.whole_layers = whole_layers
        self.device = torch.device(device)
        self._poison = poison
        front = range(whole_layers)
        rest = range(whole_layers, geometry.num_layers)
        self.pools = {
            LengthGroup.FRONT: KvPool(
                geometry, layers=front, num_pages=pages_front, device=self.device
            ),
            LengthGroup.REST: KvPool(
                geometry, layers=rest, num_pages=pages_rest, device=self.device
            ),
        }
        if poison:
            for pool in self.pools.values():
                pool.memory.fill_(torch.nan)

    def group_of(self, layer: int) -> LengthGroup:
        """The group of a model layer."""
        return LengthGroup.FRONT if layer < self.whole_layers else LengthGroup.REST

    def pool_of(self, layer: int) -> KvPool:
        """The memory of a model layer."""
        return self.pools[self.group_of(layer)]

    def reserve(self, *, front_tokens: int, rest_tokens: int) -> SequencePages | None:
        """Takes all pages of a row, growth included, so that a running row never runs out.

        Returns:
            The pages, or None when either group has too few; then nothing is taken.
        """
        front_pool, rest_pool = self.pools[LengthGroup.FRONT], self.pools[LengthGroup.REST]
        front = front_pool.allocate(front_tokens)
        if front is None:
            return None
        rest = rest_pool.allocate(rest_tokens)
        if rest is None:
            front_pool.pages.free(front.pages)
            return None
        return SequencePages(front=front, rest=rest, free_since=self._enqueued())

    def _enqueued(self) -> torch.cuda.Event | None:
        """Marks what the engine's stream has been given: a step for a row that is over included."""
        if self.device.type != "cuda":
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.default_stream(self.device))
        return event

    def release(self, pages: SequencePages) -> None:
        """Gives a row's pages back.

        Raises:
            InternalError: they are not held.
        """
        for group, pool in self.pools.items():
            held = pages.of(group)
            pool.pages.free(held.pages)
            if self._poison:
                pool.poison(held.table)

    def shrink(self, pages: SequencePages, *, surplus_tokens: int) -> SequencePages:
        """Gives back the REST pages of a row that will hold `surplus_tokens` fewer than granted.

        Returns:
            The pages that are left; none was written yet.
        """
        pool = self.pools[LengthGroup.REST]
        surplus_pages = surplus_tokens // PAGE_SIZE
        if not surplus_pages or not pool.layers:
            return pages
        return replace(pages, rest=pool.shrink(pages.rest, by=surplus_pages))

    def write_prompt(
        self,
        pages: SequencePages,
        *,
        layer: int,
        keys_NGD: torch.Tensor,
        values_NGD: torch.Tensor,
    ) -> None:
        """Copies a prompt's keys and values of one layer into slots 0..N-1 of a row.

        Raises:
            ManifestError: the shape is not the model's, or the row has too few pages.
        """
        held = pages.of(self.group_of(layer))
        wanted = (keys_NGD.shape[0], self.geometry.num_kv_heads, self.geometry.head_dim)
        shapes = (tuple(keys_NGD.shape), tuple(values_NGD.shape))
        if shapes != (wanted, wanted) or wanted[0] > len(held.pages) * PAGE_SIZE:
            raise ManifestError(
                f"keys and values of layer {layer} have shapes {shapes} where {wanted} in at most "
                f"{len(held.pages)} pages is wanted: the two sides disagree on the manifest"
            )
        pool = self.pool_of(layer)
        for paged, flat, prompt_NGD in zip(
            pool.paged(layer), pool.flat(layer), (keys_NGD, values_NGD), strict=True
        ):
            if held.start is not None:
                first = held.start * PAGE_SIZE
                flat[first : first + wanted[0]] = prompt_NGD
            else:
                _scatter(paged, held.table, prompt_NGD)

    def check_integrity(self) -> None:
        """Verifies the page counts of both groups.

        Raises:
            InternalError: pages were lost.
        """
        for pool in self.pools.values():
            pool.pages.check_integrity()

    def check_idle(self) -> None:
        """Verifies that nothing is held, as must be when no request lives.

        Raises:
            InternalError: pages are still held.
        """
        self.check_integrity()
        for group, pool in self.pools.items():
            if pool.pages.num_used:
                raise InternalError(
                    f"{pool.pages.num_used} pages of group {group.name} are held while no request "
                    "lives: a release was missed; report this"
                )


def page_table(pages: Sequence[int], device: torch.device) -> GroupPages:
    """Pages in logical order as a row reads them."""
    run = bool(pages) and list(pages) == list(range(pages[0], pages[0] + len(pages)))
    table = torch.tensor(pages, dtype=torch.int64, device=device)
    return GroupPages(pages=tuple(pages), start=pages[0] if run else None, table=table)


def _scatter(paged: torch.Tensor, table: torch.Tensor, prompt_NGD: torch.Tensor) -> None:
    """Copies slots into scattered pages of a [pages, 16, G, D] view."""
    whole = prompt_NGD.shape[0] // PAGE_SIZE
    if whole:
        paged[table[:whole]] = prompt_NGD[: whole * PAGE_SIZE].unflatten(0, (whole, PAGE_SIZE))  # type: ignore[no-untyped-call]
    tail = prompt_NGD.shape[0] - whole * PAGE_SIZE
    if tail:
        paged[table[whole], :tail] = prompt_NGD[whole * PAGE_SIZE :]
