"""How full a KV cache is said to be."""

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from decode_service.engine.kv_cache import PagedKvCache
from decode_service.engine.recorder import MetricsRecorder
from decode_service.engine.status import PageUse, TokenRate, measure_load
from shared.kv.geometry import KvGeometry
from shared.kv.slab import Slab
from shared.telemetry.metrics import DecodeMetrics, HandoffFailureMetrics, HealthMetrics

GEOMETRY = KvGeometry(num_layers=6, num_kv_heads=2, head_dim=16)


def cache_of(*, front: int, rest: int, whole_layers: int = 2) -> PagedKvCache:
    return PagedKvCache(GEOMETRY, whole_layers=whole_layers, pages_front=front, pages_rest=rest)


def test_an_empty_cache_has_every_page_free() -> None:
    use = PageUse.of(cache_of(front=30, rest=7))
    assert (use.total, use.free, use.held, use.share) == (37, 37, 0, 0.0)


def test_a_full_group_fills_the_cache_however_empty_the_other_is() -> None:
    cache = cache_of(front=40, rest=4)
    assert cache.reserve(front_tokens=64, rest_tokens=64) is not None
    use = PageUse.of(cache)
    assert use.share == 1.0
    assert use.free == 0, "nothing fits any more"
    assert (use.held, use.total) == (8, 44)


def test_the_front_group_may_be_the_fuller_one() -> None:
    cache = cache_of(front=8, rest=8)
    assert cache.reserve(front_tokens=96, rest_tokens=16) is not None
    use = PageUse.of(cache)
    assert (use.share, use.free, use.held) == (0.75, 4, 7)


@pytest.mark.parametrize("whole_layers", [0, 6])
def test_a_group_without_layers_says_nothing(whole_layers: int) -> None:
    cache = cache_of(front=8, rest=8, whole_layers=whole_layers)
    assert cache.reserve(front_tokens=32, rest_tokens=32) is not None
    use = PageUse.of(cache)
    assert (use.total, use.held, use.share, use.free) == (8, 2, 0.25, 6)


def test_metric_and_load_tell_the_fuller_group() -> None:
    registry = CollectorRegistry()
    rate = TokenRate(lambda: 0.0)
    recorder = MetricsRecorder(
        DecodeMetrics(registry),
        transfer=HandoffFailureMetrics(registry),
        health=HealthMetrics(registry),
        rate=rate,
        num_layers=6,
    )
    cache = cache_of(front=40, rest=4)
    cache.reserve(front_tokens=64, rest_tokens=64)
    idle = SimpleNamespace(num_running=0, num_waiting=0, stalled_seconds=0.0)
    worker: Any = SimpleNamespace(table=SimpleNamespace(draining=False), engine=idle)
    load = measure_load(worker, cache=cache, slab=Slab(64), rate=rate, max_batch=1)
    recorder.refresh(load, expired=0, tokens_refused=0)
    assert registry.get_sample_value("tandem_kv_utilization") == 1.0
    assert registry.get_sample_value("tandem_kv_pages_used") == 8
    assert (load.free_pages, load.total_pages) == (0, 44)
