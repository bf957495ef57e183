"""The parts of an answer's life as spans and events under its call's span."""

from decode_service.engine.stream import Ending
from shared.telemetry import gen_ai
from shared.telemetry.spans import Span

TOKENS_PER_EVENT = 64
"""Tokens between two events: never one a token."""


class AnswerSpans:
    """Turns what the engine delivers into spans; they are as long as the engine says.

    Args:
        span: the call's; None outside of a trace.
    """

    def __init__(self, span: Span | None) -> None:
        self._span = span
        self._tokens = 0

    def take(self, num_tokens: int, ending: Ending | None) -> None:
        """Hears of tokens, of the ending or of both, when they came."""
        if self._span is None:
            return
        before, self._tokens = self._tokens, self._tokens + num_tokens
        if before // TOKENS_PER_EVENT != self._tokens // TOKENS_PER_EVENT:
            self._span.event("tokens", {"tandem.tokens": self._tokens})
        if ending is not None:
            self._ended(self._span, ending)

    def _ended(self, span: Span, ending: Ending) -> None:
        since = sum(seconds for _, seconds in ending.phases)
        for phase, seconds in ending.phases:
            part = span.child(f"decode.{_NAMES.get(phase, phase)}", started_s_ago=since)
            since -= seconds
            part.end(s_ago=max(0.0, since))
        span.note(
            {
                gen_ai.OUTPUT_TOKENS: ending.generated_tokens,
                "tandem.finish_reason": ending.reason.value,
                "tandem.attended": ending.attended,
                "tandem.dense": ending.dense,
            }
        )
        if ending.error is not None:
            span.fail(ending.error.error_code)


_NAMES = {"decode_queue": "queue", "first_decode": "first_step", "decode": "steps"}
"""Spans of the engine's phases, which follow each other without a gap."""
