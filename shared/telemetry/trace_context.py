"""Names of a trace as W3C Trace Context writes them: https://www.w3.org/TR/trace-context/."""

import re
import secrets
from dataclasses import dataclass

TRACEPARENT = "traceparent"
"""Header and gRPC metadata key of the trace and the caller's span."""

TRACESTATE = "tracestate"
"""Header and gRPC metadata key of what vendors add; handed on as it came."""

MAX_STATE_CHARS = 512
"""Longer vendor states are dropped, as the standard allows."""

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_TRACE = "0" * 32
_NO_SPAN = "0" * 16


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span that others may be children of."""

    trace_id: str
    """32 hex digits, the same over all hops of a request."""
    span_id: str
    """16 hex digits."""
    sampled: bool = False
    """Whether the caller records the trace."""
    state: str = ""
    """What vendors add."""

    @property
    def header(self) -> str:
        """The value of `traceparent`."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"


def fresh_context() -> TraceContext:
    """A new trace that nobody records."""
    return TraceContext(secrets.token_hex(16), secrets.token_hex(8))


def parse_context(traceparent: str | None, tracestate: str | None = None) -> TraceContext | None:
    """What a caller sent; None for an absent or malformed header, which the standard ignores."""
    match = _FORM.fullmatch(traceparent.strip()) if traceparent else None
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == "ff" or (version == "00" and more):
        return None
    if trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    state = tracestate or ""
    return TraceContext(
        trace_id,
        span_id,
        sampled=bool(int(flags, 16) & 1),
        state=state if len(state) <= MAX_STATE_CHARS else "",
    )
