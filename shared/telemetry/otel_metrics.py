"""Histograms by OpenTelemetry; imported when a collector is set, since the library is an extra."""

from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import Histogram as Instrument
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, PeriodicExportingMetricReader

from shared.telemetry.histograms import Histogram
from shared.telemetry.otel import CLOSE_S, EXPORT_S, resource_of
from shared.telemetry.spans import Attributes, SpanOwner


def otlp_metric_exporter(endpoint: str) -> MetricExporter:
    """Sends to an OTLP/gRPC collector; an https endpoint encrypts."""
    return OTLPMetricExporter(
        endpoint=endpoint, insecure=endpoint.startswith("http://"), timeout=EXPORT_S
    )


class OtelHistograms:
    """Histograms that a thread of its own exports, at the end and in between.

    The time in between is the SDK's own: 60 s, or OTEL_METRIC_EXPORT_INTERVAL in milliseconds.

    Args:
        exporter: takes what was counted since the start.
        owner: whose they are.
        histograms: all there are.
    """

    def __init__(
        self, exporter: MetricExporter, *, owner: SpanOwner, histograms: Sequence[Histogram]
    ) -> None:
        self._provider = MeterProvider(
            [PeriodicExportingMetricReader(exporter)],
            resource=resource_of(owner),
            exemplar_filter=AlwaysOffExemplarFilter(),  # our spans are not in its context
            shutdown_on_exit=False,
        )
        meter = self._provider.get_meter("tandem", owner.version)
        self._instruments: dict[Histogram, Instrument] = {
            histogram: meter.create_histogram(
                histogram.name,
                unit=histogram.unit,
                description=histogram.description,
                explicit_bucket_boundaries_advisory=histogram.bounds,
            )
            for histogram in histograms
        }

    def observe(self, histogram: Histogram, value: float, attributes: Attributes) -> None:
        """Counts one value."""
        self._instruments[histogram].record(value, attributes)

    def close(self) -> None:
        """Sends what was counted, and gives up after `CLOSE_S` seconds; blocks."""
        self._provider.shutdown(timeout_millis=CLOSE_S * 1000)
