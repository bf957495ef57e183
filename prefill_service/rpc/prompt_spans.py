"""The parts of a prompt's life as spans under its call's."""

import time

from prefill_service.engine.job import Event, Failed, FirstTokens, Sealed, Started
from shared.telemetry.spans import Span


class PromptSpans:
    """Turns the engine's events into spans; they are as long as the engine says.

    Args:
        span: the call's; None outside of a trace.
    """

    def __init__(self, span: Span | None) -> None:
        self._span = span
        self._started = 0.0

    def take(self, event: Event) -> None:
        """Hears of one event, when it came."""
        span = self._span
        if span is None:
            return
        match event:
            case Started():
                self._started = time.monotonic()
                span.child("prefill.queue", started_s_ago=event.queue_seconds).end()
                span.note(
                    {
                        "tandem.pruned": event.pruning.pruned,
                        "tandem.pruning_reason": event.pruning.reason,
                    }
                )
            case FirstTokens():
                span.child("prefill.compute", started_s_ago=time.monotonic() - self._started).end()
            case Sealed():
                self._sealed(span, event)
            case Failed():
                span.fail(event.error.error_code)

    def _sealed(self, span: Span, event: Sealed) -> None:
        phases = dict(event.phases)
        span.child(
            "transfer",
            attributes={
                "tandem.kv_bytes": event.kv_bytes,
                "tandem.transport": event.transport,
                "tandem.decode_worker": event.target.worker_id,
            },
            started_s_ago=phases.get("transfer", 0.0),
        ).end()
        span.note(
            {
                "tandem.kept_tokens": event.kept_tokens,
                "tandem.prefill_seconds": phases.get("prefill", 0.0),
                "tandem.select_seconds": phases.get("select", 0.0),
            }
        )
