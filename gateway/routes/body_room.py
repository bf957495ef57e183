"""How many bytes of request bodies the gateway holds at once.

The queue bounds prompts by their tokens, but only once they were read and tokenized, and a body may
be long without a long prompt. So bodies have a bound of their own, from their first byte to the end
of their answer.
"""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.errors import OverloadedError

_RETRY_S = 1.0


class BodyRoom:
    """Counts what requests bring, and refuses more than there is room for.

    Args:
        limit_bytes: of all requests together.
    """

    def __init__(self, *, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.held_bytes = 0

    def around(self, app: ASGIApp) -> ASGIApp:
        """The application, which answers a refusal as any other error that it meets."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            await self._serve(app, scope, receive, send)

        return counted

    async def _serve(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        own_bytes = 0

        async def receive_counted() -> Message:
            nonlocal own_bytes
            message = await receive()
            size = len(message.get("body", b""))
            if self.held_bytes + size > self._limit_bytes:
                raise OverloadedError(
                    f"the bodies of the requests that are here have {self.held_bytes} bytes, and "
                    f"the limit is {self._limit_bytes}: too many long ones came at once; wait as "
                    "told by retry-after",
                    retry_after_s=_RETRY_S,
                )
            self.held_bytes += size
            own_bytes += size
            return message

        try:
            await app(scope, receive_counted, send)
        finally:
            self.held_bytes -= own_bytes
