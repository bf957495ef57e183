import pytest
import torch

from decode_service.engine.kv_cache import LengthGroup, PagedKvCache
from shared.errors import InternalError, ManifestError
from shared.kv.geometry import KvGeometry
from tests.support.decode_rows import scatter_pages

GEOMETRY = KvGeometry(num_layers=5, num_kv_heads=2, head_dim=4)


def new_cache(*, poison: bool = True, whole_layers: int = 2) -> PagedKvCache:
    return PagedKvCache(
        GEOMETRY, whole_layers=whole_layers, pages_front=12, pages_rest=8, poison=poison
    )


def test_a_reservation_covers_both_groups() -> None:
    cache = new_cache()
    pages = cache.reserve(front_tokens=33, rest_tokens=16)
    assert pages is not None
    assert (len(pages.front.pages), len(pages.rest.pages)) == (3, 1)
    assert (pages.front.start, pages.rest.start) == (0, 0)


@pytest.mark.parametrize(("front", "rest"), [(12 * 16 + 1, 1), (1, 8 * 16 + 1)])
def test_a_reservation_that_does_not_fit_takes_nothing(front: int, rest: int) -> None:
    cache = new_cache()
    assert cache.reserve(front_tokens=front, rest_tokens=rest) is None
    cache.check_idle()


def test_an_exact_fit_fits() -> None:
    cache = new_cache()
    pages = cache.reserve(front_tokens=192, rest_tokens=128)
    assert pages is not None
    assert cache.reserve(front_tokens=1, rest_tokens=1) is None
    cache.release(pages)
    cache.check_idle()


def test_releasing_twice_is_refused() -> None:
    cache = new_cache()
    pages = cache.reserve(front_tokens=5, rest_tokens=5)
    assert pages is not None
    cache.release(pages)
    with pytest.raises(InternalError):
        cache.release(pages)


@pytest.mark.parametrize(("surplus", "left"), [(0, 7), (15, 7), (16, 6), (47, 5), (99, 1)])
def test_surplus_tokens_give_whole_pages_back(surplus: int, left: int) -> None:
    cache = new_cache()
    pages = cache.reserve(front_tokens=120, rest_tokens=100)
    assert pages is not None
    fewer = cache.shrink(pages, surplus_tokens=surplus)
    assert fewer.front is pages.front
    assert fewer.rest.pages == pages.rest.pages[:left] == tuple(fewer.rest.table.tolist())
    assert len(fewer.rest.pages) * 16 >= 100 - surplus
    assert fewer.rest.start == 0
    assert cache.pools[LengthGroup.REST].pages.num_used == left
    cache.release(fewer)
    cache.check_idle()


def test_whole_layers_have_nothing_to_give_back() -> None:
    cache = new_cache(whole_layers=5)
    pages = cache.reserve(front_tokens=120, rest_tokens=100)
    assert pages is not None
    assert cache.shrink(pages, surplus_tokens=50) is pages


def test_idle_with_held_pages_is_a_defect() -> None:
    cache = new_cache()
    assert cache.reserve(front_tokens=5, rest_tokens=5) is not None
    with pytest.raises(InternalError, match="missed"):
        cache.check_idle()


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 32])
@pytest.mark.parametrize("layer", [0, 4])
def test_a_prompt_lands_slot_by_slot(layer: int, tokens: int, *, scattered: bool) -> None:
    cache = new_cache()
    pool = cache.pool_of(layer)
    if scattered:
        scatter_pages(pool.pages)
    pages = cache.reserve(front_tokens=tokens, rest_tokens=tokens)
    assert pages is not None
    keys_NGD, values_NGD = torch.rand(tokens, 2, 4), torch.rand(tokens, 2, 4)
    cache.write_prompt(pages, layer=layer, keys_NGD=keys_NGD, values_NGD=values_NGD)
    keys, values = pool.paged(layer)
    held = pages.of(cache.group_of(layer)).pages
    for slot in range(tokens):
        page, place = held[slot // 16], slot % 16
        assert torch.equal(keys[page, place], keys_NGD[slot])
        assert torch.equal(values[page, place], values_NGD[slot])
    assert int(torch.isfinite(keys).all(dim=(-1, -2)).sum()) == tokens  # nothing else was touched


@pytest.mark.parametrize("shape", [(17, 2, 4), (5, 1, 4), (5, 2, 3)])
def test_a_prompt_of_another_shape_is_refused(shape: tuple[int, int, int]) -> None:
    cache = new_cache()
    pages = cache.reserve(front_tokens=16, rest_tokens=16)
    assert pages is not None
    with pytest.raises(ManifestError):
        cache.write_prompt(
            pages, layer=0, keys_NGD=torch.zeros(shape), values_NGD=torch.zeros(shape)
        )


def test_released_pages_are_poisoned_and_others_are_not() -> None:
    cache = new_cache()
    first = cache.reserve(front_tokens=16, rest_tokens=16)
    second = cache.reserve(front_tokens=16, rest_tokens=16)
    assert first is not None
    assert second is not None
    ones = torch.ones(16, 2, 4)
    for pages in (first, second):
        cache.write_prompt(pages, layer=3, keys_NGD=ones, values_NGD=ones)
    cache.release(first)
    keys, _ = cache.pool_of(3).paged(3)
    assert torch.isnan(keys[first.rest.pages[0]]).all()
    assert torch.equal(keys[second.rest.pages[0]], ones)


def test_a_group_without_layers_needs_no_pages() -> None:
    cache = new_cache(whole_layers=0)
    pages = cache.reserve(front_tokens=10**6, rest_tokens=16)
    assert pages is not None
    assert pages.front.pages == ()
    assert cache.group_of(0) is LengthGroup.REST
    cache.release(pages)
    cache.check_idle()
