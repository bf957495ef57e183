"""A collector of OpenTelemetry in this process: the real protocol, kept in memory."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import HistogramDataPoint, Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Collector:
    """What was sent."""

    endpoint: str = ""
    metrics: list[metrics_service_pb2.ExportMetricsServiceRequest] = field(default_factory=list)
    traces: list[trace_service_pb2.ExportTraceServiceRequest] = field(default_factory=list)

    def service(self) -> str:
        """The only service that sent metrics."""
        (name,) = {
            attributes(resource.resource.attributes)["service.name"]
            for request in self.metrics
            for resource in request.resource_metrics
        }
        return str(name)

    def histograms(self) -> dict[str, Metric]:
        """The last state of each metric, by name."""
        return {
            metric.name: metric
            for request in self.metrics
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def spans(self) -> Iterator[Span]:
        """Every span."""
        for request in self.traces:
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    yield from scope.spans


def attributes(pairs: Any) -> dict[str, Any]:
    """Attributes as a dictionary; arrays as lists."""

    def value(pair: KeyValue) -> Any:
        kind = pair.value.WhichOneof("value")
        if kind == "array_value":
            return [item.string_value for item in pair.value.array_value.values]
        return getattr(pair.value, str(kind))

    return {pair.key: value(pair) for pair in pairs}


def points(metric: Metric) -> list[tuple[dict[str, Any], HistogramDataPoint]]:
    """The points of a histogram with their attributes."""
    return [(attributes(point.attributes), point) for point in metric.histogram.data_points]


class _Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    async def Export(self, request: Any, context: Any) -> Any:  # noqa: N802  the name on the wire
        self._collector.metrics.append(request)
        return metrics_service_pb2.ExportMetricsServiceResponse()


class _Traces(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    async def Export(self, request: Any, context: Any) -> Any:  # noqa: N802  the name on the wire
        self._collector.traces.append(request)
        return trace_service_pb2.ExportTraceServiceResponse()


@asynccontextmanager
async def running_collector() -> AsyncIterator[Collector]:
    """A collector on a free port of loopback."""
    collector = Collector()
    server = grpc.aio.server()
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(_Metrics(collector), server)
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(_Traces(collector), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    collector.endpoint = f"http://127.0.0.1:{port}"
    try:
        yield collector
    finally:
        await server.stop(None)
