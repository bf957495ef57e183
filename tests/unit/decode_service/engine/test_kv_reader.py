"""Reads of pages, slots and head by head, against plain indexing."""

import random

import pytest
import torch

from decode_service.engine.kv_cache import GroupPages, LengthGroup, PagedKvCache
from decode_service.engine.kv_read import KvRead, chosen_read, whole_read
from decode_service.engine.kv_reader import KvReader, LayerKeys
from decode_service.sparsity.base import Selection, page_selection, slot_selection
from shared.kv.geometry import PAGE_SIZE, KvGeometry, pages_for
from tests.support.decode_rows import scatter_pages

GEOMETRY = KvGeometry(num_layers=2, num_kv_heads=2, head_dim=4)
NUM_HEADS = 6
LAYER = 1


def filled_cache(*, scattered: bool, length: int) -> tuple[PagedKvCache, GroupPages, torch.Tensor]:
    """A cache with one row of random KV, its pages, and the KV as [2, length, G, D]."""
    cache = PagedKvCache(GEOMETRY, whole_layers=2, pages_front=96, pages_rest=1, poison=True)
    if scattered:
        scatter_pages(cache.pools[LengthGroup.FRONT].pages)
    pages = cache.reserve(front_tokens=length, rest_tokens=0)
    assert pages is not None
    kv = torch.randn(2, length, GEOMETRY.num_kv_heads, GEOMETRY.head_dim)
    cache.write_prompt(pages, layer=LAYER, keys_NGD=kv[0], values_NGD=kv[1])
    return cache, pages.front, kv


def random_selection(rows: int, unit: int, *, length: int, seed: int) -> Selection:
    """Some units in each row, the last one among them."""
    generator = random.Random(seed)
    last = (pages_for(length) if unit == PAGE_SIZE else length) - 1
    size = min(5, last)
    units_RU = torch.tensor(
        [[*sorted(generator.sample(range(last), size)), last] for _ in range(rows)]
    )
    if unit == PAGE_SIZE:
        return page_selection(units_RU, kv_length=length)
    return slot_selection(units_RU)


def slots_of(units: list[int], *, unit: int, length: int) -> list[int]:
    return [
        slot for number in units for slot in range(number * unit, min((number + 1) * unit, length))
    ]


@pytest.mark.parametrize("length", [1, 16, 47, 48, 130])
@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("unit", [1, PAGE_SIZE])
@pytest.mark.parametrize("rows", [1, GEOMETRY.num_kv_heads, NUM_HEADS])
def test_a_choice_is_read_in_order_by_every_head(
    rows: int, unit: int, *, scattered: bool, length: int
) -> None:
    cache, held, kv = filled_cache(scattered=scattered, length=length)
    selection = random_selection(rows, unit, length=length, seed=length)
    read = chosen_read(selection, held, num_kv_heads=GEOMETRY.num_kv_heads)
    got = torch.stack(KvReader(cache).view(LAYER, read))
    chosen = [slots_of(units, unit=unit, length=length) for units in selection.units_RU.tolist()]
    assert read.slots == len(chosen[0])
    if rows == 1:
        assert torch.equal(got, kv[:, chosen[0]])
        return
    share = rows // GEOMETRY.num_kv_heads
    wanted = torch.stack([kv[:, slots, row // share] for row, slots in enumerate(chosen)], dim=2)
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("scattered", [False, True])
def test_a_whole_row_in_one_run_is_read_in_place(*, scattered: bool) -> None:
    cache, held, kv = filled_cache(scattered=scattered, length=70)
    keys, values = KvReader(cache).view(LAYER, whole_read(held, length=70))
    assert torch.equal(torch.stack((keys, values)), kv)
    pool = cache.pool_of(LAYER).memory
    in_place = keys.untyped_storage().data_ptr() == pool.untyped_storage().data_ptr()
    assert in_place is not scattered


def test_buffers_are_kept() -> None:
    cache, held, _ = filled_cache(scattered=True, length=70)
    reader = KvReader(cache)
    big, small = whole_read(held, length=70), whole_read(held, length=40)
    first, _ = reader.view(LAYER, big)
    for read in (small, big):
        assert reader.view(LAYER, read)[0].data_ptr() == first.data_ptr()


@pytest.mark.parametrize("scattered", [False, True])
def test_policies_see_the_keys_from_any_page_on(*, scattered: bool) -> None:
    cache, held, kv = filled_cache(scattered=scattered, length=70)
    keys = LayerKeys(KvReader(cache)).at(LAYER, whole_read(held, length=70))
    assert keys.length == 70
    assert torch.equal(keys.keys(), kv[0])
    for page in range(pages_for(70)):
        assert torch.equal(keys.keys(first_page=page), kv[0, PAGE_SIZE * page :])


def test_a_read_knows_the_choice_that_it_came_from() -> None:
    _, held, _ = filled_cache(scattered=False, length=70)
    selection = random_selection(1, PAGE_SIZE, length=70, seed=0)
    read: KvRead = chosen_read(selection, held, num_kv_heads=GEOMETRY.num_kv_heads)
    assert read.selection is selection
    assert whole_read(held, length=70).selection is None
