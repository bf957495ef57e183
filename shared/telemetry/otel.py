"""Spans by OpenTelemetry; imported when a collector is set, since the library is an extra."""

import threading
import time

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import StatusCode

from shared.telemetry.gen_ai import ERROR_TYPE
from shared.telemetry.spans import Attributes, Span, SpanKind, SpanOwner
from shared.telemetry.trace_context import TraceContext

CLOSE_S = 3.0
"""Longest wait for the collector when a role ends, in seconds."""

EXPORT_S = 5.0
"""Longest time for one export, tries after failures included, in seconds."""

_END_S = 1.0
_NS = 1_000_000_000

_KINDS = {
    SpanKind.SERVER: trace.SpanKind.SERVER,
    SpanKind.CLIENT: trace.SpanKind.CLIENT,
    SpanKind.INTERNAL: trace.SpanKind.INTERNAL,
}


def otlp_exporter(endpoint: str) -> SpanExporter:
    """Sends to an OTLP/gRPC collector; an https endpoint encrypts."""
    return OTLPSpanExporter(
        endpoint=endpoint, insecure=endpoint.startswith("http://"), timeout=EXPORT_S
    )


def resource_of(owner: SpanOwner) -> Resource:
    """The process, as a collector shows it."""
    return Resource.create(
        {
            "service.name": f"tandem-{owner.role}",
            "service.instance.id": owner.worker_id,
            "service.version": owner.version,
        }
    )


class OtelSource:
    """A span source that exports in a thread of its own; a full queue drops spans, never waits.

    Args:
        exporter: takes batches of ended spans.
        owner: whose spans they are.
        sample_ratio: share of the requests without a caller's decision that are recorded.
    """

    def __init__(
        self, exporter: SpanExporter, *, owner: SpanOwner, sample_ratio: float = 1.0
    ) -> None:
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(sample_ratio)),
            resource=resource_of(owner),
            shutdown_on_exit=False,
        )
        self._exporter = exporter
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("tandem", owner.version)

    def root(
        self, name: str, *, parent: TraceContext | None, attributes: Attributes | None = None
    ) -> Span:
        """The span of a request that came in."""
        above = Context() if parent is None else _under(_remote(parent))
        span = self._tracer.start_span(
            name, context=above, kind=trace.SpanKind.SERVER, attributes=attributes
        )
        return _OtelSpan(span, self._tracer)

    def flush(self) -> None:
        """Sends what has ended; blocks."""
        self._provider.force_flush(round(CLOSE_S * 1000))

    def close(self) -> None:
        """Sends what was recorded, and gives up after `CLOSE_S` seconds; blocks."""
        # The library waits 30 seconds for a collector that hangs, and has no setting for it.
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(CLOSE_S)
        if ending.is_alive():
            self._exporter.shutdown()  # cancels the call or the wait under way: both threads end
            ending.join(_END_S)


class _OtelSpan:
    def __init__(self, span: trace.Span, tracer: trace.Tracer) -> None:
        self._span = span
        self._tracer = tracer
        self._failed = False

    @property
    def context(self) -> TraceContext:
        own = self._span.get_span_context()
        return TraceContext(
            f"{own.trace_id:032x}",
            f"{own.span_id:016x}",
            sampled=own.trace_flags.sampled,
            state=own.trace_state.to_header(),
        )

    def child(
        self,
        name: str,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes | None = None,
        started_s_ago: float = 0.0,
    ) -> Span:
        span = self._tracer.start_span(
            name,
            context=_under(self._span),
            kind=_KINDS[kind],
            attributes=attributes,
            start_time=_ago(started_s_ago),
        )
        return _OtelSpan(span, self._tracer)

    def note(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def event(self, name: str, attributes: Attributes | None = None) -> None:
        self._span.add_event(name, attributes)

    def fail(self, code: str) -> None:
        if self._failed:  # the first cause is the one to tell
            return
        self._failed = True
        self._span.set_attribute(ERROR_TYPE, code)
        self._span.set_status(StatusCode.ERROR, code)

    def end(self, *, s_ago: float = 0.0) -> None:
        self._span.end(_ago(s_ago))


def _ago(seconds: float) -> int:
    """A wall-clock time in nanoseconds, which is what spans carry."""
    return time.time_ns() - round(seconds * _NS)


def _under(span: trace.Span) -> Context:
    return trace.set_span_in_context(span, Context())


def _remote(parent: TraceContext) -> trace.Span:
    return trace.NonRecordingSpan(
        trace.SpanContext(
            trace_id=int(parent.trace_id, 16),
            span_id=int(parent.span_id, 16),
            is_remote=True,
            trace_flags=trace.TraceFlags(int(parent.sampled)),
            trace_state=trace.TraceState.from_header([parent.state] if parent.state else []),
        )
    )
