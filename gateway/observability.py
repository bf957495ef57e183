"""What the gateway tells about itself, put together from its settings: metrics, spans, requests."""

import asyncio
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from gateway.config import GatewayConfig
from gateway.debug.request_log import LogLimits, RequestLog
from gateway.gen_ai_metrics import HISTOGRAMS, GenAiMetrics
from gateway.observer import RequestObserver
from gateway.recorder import Recorder
from gateway.slo import SloBounds, SloWatch
from gateway.span_notes import SpanNotes
from shared.config.fingerprint import config_fingerprint
from shared.config.version import package_version
from shared.grammar.compiler import GrammarCompiler
from shared.telemetry.metrics import BuildMetrics, GatewayMetrics
from shared.telemetry.spans import SpanOwner, SpanSource
from shared.telemetry.tracing import open_histograms, open_spans
from shared.tokenizer.tokenizer import Tokenizer

ROLE = "gateway"

_SHOWN_TOKENS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Observability:
    """Everything that watches requests."""

    registry: CollectorRegistry
    """What /metrics shows."""
    metrics: GatewayMetrics
    """The gateway's own."""
    build: BuildMetrics
    """What runs here."""
    spans: SpanSource
    """Where traces go."""
    gen_ai: GenAiMetrics | None
    """What a collector is told of requests; None without a collector."""
    config: GatewayConfig
    """The settings."""

    @classmethod
    def from_config(
        cls, config: GatewayConfig, *, worker_id: str, spans: SpanSource | None
    ) -> "Observability":
        """Makes the parts.

        Args:
            config: the settings.
            worker_id: name of this gateway.
            spans: where traces go; None: as the settings say.

        Raises:
            ConfigError: the collector's settings cannot be used.
        """
        registry = CollectorRegistry()
        owner = SpanOwner(role=ROLE, worker_id=worker_id, version=package_version())
        return cls(
            registry=registry,
            metrics=GatewayMetrics(registry),
            build=BuildMetrics(registry),
            spans=spans
            or open_spans(
                owner, endpoint=config.otlp_endpoint, sample_ratio=config.otlp_sample_ratio
            ),
            gen_ai=_gen_ai(config, owner=owner),
            config=config,
        )

    def observers(self) -> tuple[RequestObserver, ...]:
        """Who is told of requests."""
        bounds = SloBounds(ttft_s=self.config.slo_ttft_s, tpot_s=self.config.slo_tpot_s)
        ours = (Recorder(self.metrics), SloWatch(self.metrics, bounds=bounds), SpanNotes())
        return ours if self.gen_ai is None else (*ours, self.gen_ai)

    def request_log(self, tokenizer: Tokenizer) -> RequestLog:
        """The log of the last requests; with their prompts when the operator wants them."""
        limits = LogLimits(requests=self.config.debug_requests, nbytes=self.config.debug_bytes)
        if not self.config.debug_prompts:
            return RequestLog(limits)
        return RequestLog(
            limits, prompt_text=lambda ids: tokenizer.decode(list(ids[:_SHOWN_TOKENS]))
        )

    def grammar_compiler(self, tokenizer: Tokenizer) -> GrammarCompiler:
        """A compiler whose work is measured."""
        observe = self.metrics.grammar_compile_seconds.observe
        return GrammarCompiler(tokenizer, on_compiled=observe)

    def serves(self, model: str) -> None:
        """Says what runs here, once it is known."""
        self.build.build_info.labels(role=ROLE, model=model, version=package_version()).set(1)
        self.build.config_info.labels(role=ROLE, config=config_fingerprint(self.config)).set(1)
        if self.gen_ai is not None:
            self.gen_ai.serves(model)

    async def close(self) -> None:
        """Sends what a collector has not got yet, for seconds at most."""
        closing = [self.spans.close, *([self.gen_ai.close] if self.gen_ai is not None else [])]
        await asyncio.gather(*(asyncio.to_thread(close) for close in closing))


def _gen_ai(config: GatewayConfig, *, owner: SpanOwner) -> GenAiMetrics | None:
    sink = open_histograms(owner, endpoint=config.otlp_endpoint, histograms=HISTOGRAMS)
    return None if sink is None else GenAiMetrics(sink)
