"""Copies a landed prompt from its slab into pages: every layer, keys and values, in one launch.

A page's 16 slots lie together in the slab and in the pool, so one program copies one page of one
layer's keys or values as a single run.

Shapes: L layers, G KV heads, D head size, P pages of a pool.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from shared.kv.geometry import PAGE_SIZE

_BLOCK = 4096

DESCRIPTOR = 4
"""Numbers of a layer's descriptor: see `LandedLayers.layers_L4`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PagePool:
    """Where layers of one length group go."""

    memory: Tensor
    """[layers of the group, 2, P, 16, G, D], contiguous; keys before values."""
    table: Tensor
    """Page of each run of 16 slots, int64, of this prompt."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LandedLayers:
    """Where layers come from."""

    slab: Tensor
    """The handoff's bytes as items of the cache's type, one-dimensional and contiguous."""
    layers_L4: Tensor
    """int64 on the device, for each layer: its first item in the slab, a multiple of 16; its
    slots; 1 for the second pool, 0 for the first; its index there. Keys lie before values, each
    [slots, G, D]."""
    most_slots: int
    """Slots of the longest layer."""
    run: range | None = None
    """Which of the layers to copy; None: all."""


def scatter_prompt(landed: LandedLayers, *, front: PagePool, rest: PagePool) -> None:
    """Fills the pages of both pools; slots behind a layer's last one keep what they hold.

    Args:
        landed: what came.
        front: the first pool.
        rest: the second pool, of the same item type, G and D.
    """
    heads, head_dim = front.memory.shape[4:]
    run = range(landed.layers_L4.shape[0]) if landed.run is None else landed.run
    if len(run) == 0 or landed.most_slots == 0:
        return
    page_items = PAGE_SIZE * heads * head_dim
    _copy_page[(triton.cdiv(landed.most_slots, PAGE_SIZE), 2 * len(run))](
        landed.slab,
        landed.layers_L4,
        front.memory,
        rest.memory,
        front.table,
        rest.table,
        front.memory.shape[2],
        rest.memory.shape[2],
        run.start,
        SLOT=heads * head_dim,
        PAGE=PAGE_SIZE,
        BLOCK=min(_BLOCK, triton.next_power_of_2(page_items)),
        num_warps=8,
    )


@triton.jit(do_not_specialize=["front_pages", "rest_pages", "first_layer"])
def _copy_page(
    slab_ptr,
    layers_ptr,
    front_ptr,
    rest_ptr,
    front_table_ptr,
    rest_table_ptr,
    front_pages,
    rest_pages,
    first_layer,
    SLOT: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    page = tl.program_id(0)
    layer = first_layer + tl.program_id(1) // 2
    half = tl.program_id(1) % 2
    start = tl.multiple_of(tl.load(layers_ptr + 4 * layer), 16)
    slots = tl.load(layers_ptr + 4 * layer + 1)
    second = tl.load(layers_ptr + 4 * layer + 2)
    index = tl.load(layers_ptr + 4 * layer + 3)
    first_slot = page.to(tl.int64) * PAGE
    if first_slot < slots:
        count = tl.minimum(slots - first_slot, PAGE) * SLOT
        source_ptr = slab_ptr + start + (half * slots + first_slot) * SLOT
        if second == 0:
            place = (index * 2 + half) * front_pages + tl.load(front_table_ptr + page)
            target_ptr = front_ptr + place * (PAGE * SLOT)
        else:
            place = (index * 2 + half) * rest_pages + tl.load(rest_table_ptr + page)
            target_ptr = rest_ptr + place * (PAGE * SLOT)
        for begin in range(0, PAGE * SLOT, BLOCK):
            item = begin + tl.arange(0, BLOCK)
            there = item < count
            tl.store(target_ptr + item, tl.load(source_ptr + item, mask=there), mask=there)
