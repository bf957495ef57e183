"""Spans with and without a collector."""

import asyncio

import pytest
import structlog
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind as OtelKind

from shared.errors import ConfigError, OverloadedError
from shared.telemetry import otel
from shared.telemetry.otel import OtelSource
from shared.telemetry.spans import (
    QuietSource,
    SpanKind,
    SpanOwner,
    child_scope,
    current_span,
    current_trace_id,
    span_scope,
)
from shared.telemetry.trace_context import fresh_context, parse_context
from shared.telemetry.tracing import open_spans
from tests.support.thread_guard import no_thread_left

WHO = SpanOwner(role="gateway", worker_id="g1", version="9")


@pytest.fixture
def exported():
    exporter = InMemorySpanExporter()
    source = OtelSource(exporter, owner=WHO)
    yield source, exporter
    source.close()


def finished(source: OtelSource, exporter: InMemorySpanExporter):
    source.flush()
    return {span.name: span for span in exporter.get_finished_spans()}


def test_without_a_collector_the_callers_trace_goes_through_unchanged():
    parent = parse_context(f"00-{'a' * 32}-{'b' * 16}-01")
    span = QuietSource().root("in", parent=parent)
    assert span.context == parent
    with span_scope(span), child_scope("part") as child:
        assert child is not None
        assert child.context == parent
        assert current_trace_id() == "a" * 32
    assert current_span() is None
    assert len(QuietSource().root("in", parent=None).context.trace_id) == 32


def test_outside_of_a_request_there_is_no_span():
    with child_scope("part") as child:
        assert child is None
    assert current_trace_id() == ""


def test_children_hang_under_their_parents(exported):
    source, exporter = exported
    caller = fresh_context()
    parent = parse_context(caller.header.removesuffix("00") + "01", "v=1")
    root = source.root("request", parent=parent, attributes={"http.route": "/x"})
    with span_scope(root), child_scope("part", {"n": 3}) as child:
        assert child is not None
        child.event("moment", {"tokens": 64})
        call = child.child("call", kind=SpanKind.CLIENT)
        call.end()
    spans = finished(source, exporter)
    assert {span.context.trace_id for span in spans.values()} == {int(caller.trace_id, 16)}
    assert spans["request"].parent.span_id == int(caller.span_id, 16)
    assert spans["request"].context.trace_state.get("v") == "1"
    assert spans["part"].parent.span_id == spans["request"].context.span_id
    assert spans["call"].parent.span_id == spans["part"].context.span_id
    assert spans["request"].kind is OtelKind.SERVER
    assert spans["call"].kind is OtelKind.CLIENT
    assert spans["part"].attributes == {"n": 3}
    assert [event.name for event in spans["part"].events] == ["moment"]
    assert spans["request"].resource.attributes["service.name"] == "tandem-gateway"
    assert spans["request"].resource.attributes["service.instance.id"] == "g1"


def test_a_span_may_have_begun_earlier(exported):
    source, exporter = exported
    root = source.root("request", parent=None)
    root.child("queue", started_s_ago=1.5).end()
    span = finished(source, exporter)["queue"]
    assert span.end_time - span.start_time >= 1.5e9


def test_the_first_error_is_told_and_cancels_are_none(exported):
    source, exporter = exported
    with pytest.raises(OverloadedError), span_scope(source.root("refused", parent=None)):
        raise OverloadedError("full", retry_after_s=1.0)
    root = source.root("failed", parent=None)
    root.fail("first")
    with pytest.raises(ValueError), span_scope(root):  # noqa: PT011
        raise ValueError
    with pytest.raises(asyncio.CancelledError), span_scope(source.root("left", parent=None)):
        raise asyncio.CancelledError
    spans = finished(source, exporter)
    assert spans["refused"].attributes["error.type"] == "queue_full"
    assert spans["failed"].attributes["error.type"] == "first"
    assert spans["left"].attributes == {"tandem.cancelled": True}
    assert spans["left"].status.is_unset


def test_callers_decide_and_the_ratio_decides_for_the_others():
    exporter = InMemorySpanExporter()
    source = OtelSource(exporter, owner=WHO, sample_ratio=0.0)
    source.root("unasked", parent=None).end()
    source.root("asked", parent=parse_context(f"00-{'a' * 32}-{'b' * 16}-01")).end()
    assert list(finished(source, exporter)) == ["asked"]
    source.close()


def test_log_lines_carry_the_trace():
    span = QuietSource().root("in", parent=None)
    with span_scope(span):
        bound = structlog.contextvars.get_contextvars()
    assert bound["trace_id"] == span.context.trace_id
    assert "trace_id" not in structlog.contextvars.get_contextvars()


@pytest.mark.timeout(30)
def test_a_dead_collector_delays_nothing_and_nothing_goes_on_after_the_end(
    dead_collector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otel, "CLOSE_S", 0.5)
    with no_thread_left(wait_s=0.0):  # they have ended, not only begun to
        source = open_spans(WHO, endpoint=dead_collector, sample_ratio=1.0)
        root = source.root("request", parent=None)
        for _ in range(5000):  # more than a queue holds
            root.child("part").end()
        root.end()
        source.close()


@pytest.mark.parametrize("endpoint", ["localhost:4317", "ftp://x", "http://"])
def test_endpoints_that_are_none(endpoint: str):
    with pytest.raises(ConfigError, match="otlp_endpoint"):
        open_spans(WHO, endpoint=endpoint, sample_ratio=1.0)


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_ratios_that_are_none(ratio: float):
    with pytest.raises(ConfigError, match="otlp_sample_ratio"):
        open_spans(WHO, endpoint="", sample_ratio=ratio)


def test_no_endpoint_is_quiet_and_needs_no_library():
    assert isinstance(open_spans(WHO, endpoint="", sample_ratio=1.0), QuietSource)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "shared.telemetry.otel", None)
    with pytest.raises(ConfigError, match=r"tandem-llm\[otel\]"):
        open_spans(WHO, endpoint="http://localhost:4317", sample_ratio=1.0)
