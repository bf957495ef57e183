"""Adds the `x-ratelimit-*` headers to whatever answers a request."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.quotas.report import open_report


class QuotaHeaders:
    """ASGI middleware: the headers are known by the time that a response starts.

    Args:
        app: the application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        report = open_report()

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(k.encode(), v.encode()) for k, v in report.headers().items()]
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        await self._app(scope, receive, send_with_headers)
