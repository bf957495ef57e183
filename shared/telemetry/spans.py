"""Spans of a request, whoever records them: the seam between our code and OpenTelemetry.

The running task's span is found by `current_span`; calls to other roles become its children and
carry its name on. Without a collector nothing is recorded, and the names still travel, so that the
log lines of all roles can be joined.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from shared.telemetry.logs import log_context
from shared.telemetry.trace_context import TraceContext, fresh_context

Attributes = Mapping[str, str | int | float | bool | Sequence[str]]
"""What a span says; never prompt text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanOwner:
    """The process whose spans they are."""

    role: str
    """gateway, prefill or decode."""
    worker_id: str
    """Which of them."""
    version: str
    """Version of this package."""


class SpanKind(Enum):
    """Which side of a call a span is."""

    SERVER = "server"
    CLIENT = "client"
    INTERNAL = "internal"


class Span(Protocol):
    """One piece of work; `end` it once."""

    @property
    def context(self) -> TraceContext:
        """Its name for children, also those in other processes."""

    def child(
        self,
        name: str,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes | None = None,
        started_s_ago: float = 0.0,
    ) -> "Span":
        """Begins a part of this work, now or some seconds ago."""

    def note(self, attributes: Attributes) -> None:
        """Adds what became known."""

    def event(self, name: str, attributes: Attributes | None = None) -> None:
        """Marks a moment."""

    def fail(self, code: str) -> None:
        """The work failed with an error of this code."""

    def end(self, *, s_ago: float = 0.0) -> None:
        """The work is over, now or since some seconds."""


class SpanSource(Protocol):
    """Begins traces, or takes up those of callers."""

    def root(
        self, name: str, *, parent: TraceContext | None, attributes: Attributes | None = None
    ) -> Span:
        """The span of a request that came in."""

    def close(self) -> None:
        """Sends what was recorded, as far as that is possible within seconds; blocks."""


class QuietSpan:
    """A span that is not recorded; all its children are itself.

    Args:
        context: its name.
    """

    def __init__(self, context: TraceContext) -> None:
        self._context = context

    @property
    def context(self) -> TraceContext:
        """Its name."""
        return self._context

    def child(
        self,
        name: str,  # noqa: ARG002
        *,
        kind: SpanKind = SpanKind.INTERNAL,  # noqa: ARG002
        attributes: Attributes | None = None,  # noqa: ARG002
        started_s_ago: float = 0.0,  # noqa: ARG002
    ) -> Span:
        """Itself: what is handed on is the caller's name, or a fresh one."""
        return self

    def note(self, attributes: Attributes) -> None:
        """Not recorded."""

    def event(self, name: str, attributes: Attributes | None = None) -> None:
        """Not recorded."""

    def fail(self, code: str) -> None:
        """Not recorded."""

    def end(self, *, s_ago: float = 0.0) -> None:
        """Not recorded."""


class QuietSource:
    """Records nothing; every request has a trace id all the same."""

    def root(
        self,
        name: str,  # noqa: ARG002
        *,
        parent: TraceContext | None,
        attributes: Attributes | None = None,  # noqa: ARG002
    ) -> Span:
        """The caller's trace, or a fresh one."""
        return QuietSpan(parent or fresh_context())

    def close(self) -> None:
        """Nothing to send."""


_current: ContextVar[Span | None] = ContextVar("tandem_span", default=None)


def current_span() -> Span | None:
    """The span of the request that the running task works for."""
    return _current.get()


def current_trace_id() -> str:
    """The trace id of the running task, or an empty string."""
    span = _current.get()
    return "" if span is None else span.context.trace_id


@contextmanager
def span_scope(span: Span) -> Iterator[Span]:
    """Makes a span the current one of this task and names its trace on log lines; ends it."""
    token = _current.set(span)
    try:
        with log_context(trace_id=span.context.trace_id):
            yield span
    except (asyncio.CancelledError, GeneratorExit):
        span.note({"tandem.cancelled": True})
        raise
    except Exception as error:
        span.fail(getattr(error, "error_code", type(error).__name__))
        raise
    finally:
        _current.reset(token)
        span.end()


@contextmanager
def child_scope(name: str, attributes: Attributes | None = None) -> Iterator[Span | None]:
    """A part of the running task's work as a span; nothing outside of a request."""
    parent = _current.get()
    if parent is None:
        yield None
        return
    span = parent.child(name, attributes=attributes)
    if span is parent:  # nothing is recorded, and the scope is the same
        yield span
        return
    with span_scope(span):
        yield span
