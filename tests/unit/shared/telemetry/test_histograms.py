"""Histograms for a collector, there and not there."""

import sys

import pytest

from shared.errors import ConfigError
from shared.telemetry import gen_ai, otel_metrics
from shared.telemetry.spans import SpanOwner
from shared.telemetry.tracing import open_histograms
from tests.support.thread_guard import no_thread_left

WHO = SpanOwner(role="gateway", worker_id="g1", version="9")
ALL = (gen_ai.REQUEST_DURATION, gen_ai.TIME_TO_FIRST_TOKEN)


@pytest.mark.timeout(30)
def test_a_dead_collector_delays_nothing_and_nothing_goes_on_after_the_end(
    dead_collector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otel_metrics, "CLOSE_S", 0.5)
    with no_thread_left():
        sink = open_histograms(WHO, endpoint=dead_collector, histograms=ALL)
        assert sink is not None
        for _ in range(1000):
            sink.observe(gen_ai.REQUEST_DURATION, 0.1, {gen_ai.OPERATION: "chat"})
        sink.close()


@pytest.mark.parametrize("endpoint", ["localhost:4317", "ftp://x", "http://"])
def test_endpoints_that_are_none(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="otlp_endpoint"):
        open_histograms(WHO, endpoint=endpoint, histograms=ALL)


def test_no_endpoint_needs_nothing() -> None:
    assert open_histograms(WHO, endpoint="", histograms=ALL) is None


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shared.telemetry.otel_metrics", None)
    with pytest.raises(ConfigError, match=r"tandem-llm\[otel\]"):
        open_histograms(WHO, endpoint="http://localhost:4317", histograms=ALL)
