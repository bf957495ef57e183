"""Pages of a KV cache, and the load of a worker."""

import pytest

from decode_service.config import DecodeConfig
from decode_service.engine.banner import banner
from decode_service.engine.sizing import size_cache
from decode_service.engine.status import TokenRate
from shared.errors import ConfigError
from shared.kv.geometry import KvGeometry
from shared.types.methods import PruningParams, SparsityParams
from tests.support.decode_parts import HandClock, make_parts

GEOMETRY = KvGeometry(num_layers=6, num_kv_heads=2, head_dim=16)
PRUNING = PruningParams(pruning_layer=3, deferred_layers=2)
PAGE = GEOMETRY.page_bytes * 6


def test_bytes_are_shared_out_as_equally_many_pages() -> None:
    size = size_cache(GEOMETRY, PRUNING, kv_bytes=10 * PAGE + 1)
    assert (size.whole_layers, size.pages_front, size.pages_rest) == (2, 10, 10)
    assert size.num_bytes == 10 * PAGE
    assert size.unpruned_tokens == 160


def test_given_counts_win() -> None:
    size = size_cache(GEOMETRY, PRUNING, kv_bytes=PAGE, pages_front=30, pages_rest=7)
    assert (size.pages_front, size.pages_rest) == (30, 7)
    assert size.num_bytes == GEOMETRY.page_bytes * (2 * 30 + 4 * 7)
    assert size.unpruned_tokens == 112


def test_a_share_gives_the_whole_layers_more_pages_of_the_same_memory() -> None:
    size = size_cache(GEOMETRY, PRUNING, kv_bytes=12 * PAGE, rest_share=0.25)
    assert (size.pages_front, size.pages_rest) == (24, 6)
    assert size.num_bytes == 12 * PAGE
    assert size.unpruned_tokens == 96
    given = size_cache(GEOMETRY, PRUNING, kv_bytes=12 * PAGE, rest_share=0.25, pages_rest=9)
    assert (given.pages_front, given.pages_rest) == (24, 9)
    with pytest.raises(ConfigError, match=r"^rest_share 0.25 leaves the pruned layers no page"):
        size_cache(GEOMETRY, PRUNING, kv_bytes=PAGE, rest_share=0.25)


def test_a_share_means_nothing_without_pruned_layers() -> None:
    whole = PruningParams(pruning_layer=5, deferred_layers=6)
    size = size_cache(GEOMETRY, whole, kv_bytes=PAGE, rest_share=0.25)
    assert (size.whole_layers, size.pages_front, size.unpruned_tokens) == (6, 1, 16)


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, float("nan")])
def test_a_share_is_above_nothing_and_at_most_everything(share: float) -> None:
    with pytest.raises(ConfigError, match="rest_share"):
        DecodeConfig(rest_share=share)


def test_whole_layers_never_pass_the_pruning_layer() -> None:
    deep = PruningParams(pruning_layer=1, deferred_layers=4)
    assert size_cache(GEOMETRY, deep, kv_bytes=PAGE).whole_layers == 2


def test_too_few_bytes_for_one_page() -> None:
    with pytest.raises(ConfigError, match="holds no page"):
        size_cache(GEOMETRY, PRUNING, kv_bytes=PAGE - 1)


def test_banner_says_what_fits() -> None:
    capacity = make_parts().capacity
    size = size_cache(GEOMETRY, PRUNING, kv_bytes=10 * PAGE)
    sparsity = SparsityParams(full_layers=(0, 2), page_budget=16, recency_pages=4)
    shown = banner(capacity=capacity, size=size, sparsity=sparsity, max_batch=8)
    assert shown["concurrency_at_full_context"] == 2.5
    assert shown["kv_pages"] == "10 front + 10 rest"
    assert shown["pages"] == "delta, K 16, L 4, F 0,2"
    streaming = SparsityParams(full_layers=(0, 2), page_budget=16, policy="streaming")
    shown = banner(capacity=capacity, size=size, sparsity=streaming, max_batch=8)
    assert shown["pages"] == "streaming, K 16"


def test_token_rate_forgets_what_is_old() -> None:
    clock = HandClock()
    rate = TokenRate(clock)
    rate.add(5)
    assert rate.per_second() == 5.0, "a young process is not divided by nothing"
    clock.now += 4
    rate.add(5)
    assert rate.per_second() == 2.5
    clock.now += 8
    assert rate.per_second() == 0.5
    clock.now += 20
    assert rate.per_second() == 0.0
