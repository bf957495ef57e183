"""The trace of a request over HTTP: taken up from `traceparent`, or begun here."""

from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.telemetry.spans import SpanSource, span_scope
from shared.telemetry.trace_context import TRACEPARENT, TRACESTATE, parse_context

_FIRST_SERVER_ERROR = 500


class TracedRequests:
    """Gives requests that do work a span, from their arrival to the end of their stream.

    Args:
        app: the application inside.
        spans: where spans come from.
        paths: paths that do work; probes, metrics and the page would only be noise.
    """

    def __init__(self, app: ASGIApp, *, spans: SpanSource, paths: Collection[str]) -> None:
        self._app = app
        self._spans = spans
        self._paths = frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        path = scope.get("path", "")
        if scope["type"] != "http" or path not in self._paths:
            await self._app(scope, receive, send)
            return
        headers, method = Headers(scope=scope), scope["method"]
        span = self._spans.root(
            f"{method} {path}",
            parent=parse_context(headers.get(TRACEPARENT), headers.get(TRACESTATE)),
            attributes={"http.request.method": method, "http.route": path},
        )

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                status = message["status"]
                span.note({"http.response.status_code": status})
                if status >= _FIRST_SERVER_ERROR:
                    span.fail(str(status))
            await send(message)

        with span_scope(span):
            await self._app(scope, receive, told)
