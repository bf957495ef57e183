"""The trace of a request that comes in over gRPC; `carrying_channel` hands it on."""

from __future__ import annotations  # grpc's generic types exist for the type checker only

from collections.abc import Iterable

import grpc
import grpc.aio

from shared.rpc.interceptors import (
    AroundCalls,
    Behaviour,
    Context,
    metadata_text,
)
from shared.telemetry.spans import SpanSource, span_scope
from shared.telemetry.trace_context import TRACEPARENT, TRACESTATE, TraceContext, parse_context

_UNTRACED = ("/tandem.v1.ControlService/", "/tandem.v1.TransferService/")
"""Polls, and raw bytes whose duration the sender's transfer span has."""


class TraceInterceptor(AroundCalls):
    """Gives each call a span under the caller's, or the first one of a trace.

    Args:
        spans: where they come from.
    """

    def __init__(self, spans: SpanSource) -> None:
        self._spans = spans

    def _around(self, inner: Behaviour, details: grpc.HandlerCallDetails, /) -> Behaviour:
        if details.method.startswith(_UNTRACED):
            return inner
        name = details.method.removeprefix("/")

        async def traced(request: object, context: Context) -> object:
            span = self._spans.root(
                name, parent=_parent_in(details.invocation_metadata), attributes=_call(name)
            )
            with span_scope(span):
                return await inner(request, context)

        return traced


def _call(name: str) -> dict[str, str]:
    service, _, method = name.rpartition("/")
    return {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}


def _parent_in(metadata: Iterable[tuple[str, str | bytes]] | None) -> TraceContext | None:
    return parse_context(metadata_text(metadata, TRACEPARENT), metadata_text(metadata, TRACESTATE))
