"""Where a role's spans and histograms go: nowhere, or to a collector."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from shared.errors import ConfigError
from shared.telemetry.histograms import Histogram, Histograms
from shared.telemetry.spans import QuietSource, SpanOwner, SpanSource


def open_spans(owner: SpanOwner, *, endpoint: str, sample_ratio: float) -> SpanSource:
    """The source of a role: quiet without an endpoint, else one that sends spans by OTLP.

    Args:
        owner: whose spans they are.
        endpoint: URL of an OTLP/gRPC collector; https encrypts.
        sample_ratio: share of the requests without a caller's decision that are recorded.

    Raises:
        ConfigError: the endpoint is no URL, the ratio is no share, or the extra is not installed.
    """
    if not 0.0 <= sample_ratio <= 1.0:
        raise ConfigError(
            f"otlp_sample_ratio is {sample_ratio}, but it is a share of requests; give 0 to 1"
        )
    if not endpoint:
        return QuietSource()
    _check(endpoint)
    try:
        from shared.telemetry.otel import OtelSource, otlp_exporter  # noqa: PLC0415  an extra
    except ImportError as error:
        raise ConfigError(_NOT_INSTALLED) from error
    return OtelSource(otlp_exporter(endpoint), owner=owner, sample_ratio=sample_ratio)


def open_histograms(
    owner: SpanOwner, *, endpoint: str, histograms: Sequence[Histogram]
) -> Histograms | None:
    """What sends a role's histograms by OTLP; None without an endpoint.

    Args:
        owner: whose they are.
        endpoint: URL of an OTLP/gRPC collector; https encrypts.
        histograms: all there are.

    Raises:
        ConfigError: the endpoint is no URL, or the extra is not installed.
    """
    if not endpoint:
        return None
    _check(endpoint)
    try:
        from shared.telemetry.otel_metrics import (  # noqa: PLC0415  an extra
            OtelHistograms,
            otlp_metric_exporter,
        )
    except ImportError as error:
        raise ConfigError(_NOT_INSTALLED) from error
    return OtelHistograms(otlp_metric_exporter(endpoint), owner=owner, histograms=histograms)


_NOT_INSTALLED = (
    "otlp_endpoint is set, but OpenTelemetry is not installed; install the extra "
    "`tandem-llm[otel]`, or leave otlp_endpoint empty"
)


def _check(endpoint: str) -> None:
    url = urlsplit(endpoint)
    if url.scheme not in {"http", "https"} or not url.hostname:
        raise ConfigError(
            f"otlp_endpoint {endpoint!r} is not the URL of a collector; give for example "
            "http://localhost:4317 (OTLP over gRPC)"
        )
