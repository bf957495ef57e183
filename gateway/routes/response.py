"""A response that may run."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from gateway import sse
from gateway.errors import ErrorReply
from gateway.job import GenerationJob
from gateway.routes.prepared import Streams
from gateway.schema.response_events import ResponseWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedResponse:
    """One response; its stream has named events and no [DONE], as the API has it."""

    jobs: Sequence[GenerationJob]
    """One."""
    streamed: bool
    """The client wants events."""
    writer: ResponseWriter
    """How to answer."""
    headers: dict[str, str]
    """Headers about ignored fields."""

    async def whole(self, streams: Streams) -> dict[str, Any]:
        """See `Prepared`."""
        async with aclosing(self._told(streams)) as events:
            async for _ in events:
                pass  # the last event has it all
        return self.writer.whole

    async def frames(self, streams: Streams) -> AsyncGenerator[bytes, None]:
        """See `Prepared`."""
        async with aclosing(self._told(streams)) as events:
            async for event in events:
                yield sse.named_frame(event)

    async def _told(self, streams: Streams) -> AsyncGenerator[dict[str, Any], None]:
        (stream,) = streams
        async with aclosing(stream) as events:
            async for event in events:
                for told in self.writer.of(event):
                    yield told

    def failure(self, reply: ErrorReply) -> bytes:
        """The event response.failed, after those that come before any other."""
        return b"".join(sse.named_frame(told) for told in self.writer.failed(reply))
