"""A request that may run, whichever API it came by, and how its answer is told."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

from gateway.errors import ErrorReply
from gateway.job import Event, GenerationJob

Streams = Sequence[AsyncGenerator[Event, None]]
"""What happens to each job."""


class Prepared(Protocol):
    """One request; an instance tells one answer."""

    @property
    def jobs(self) -> Sequence[GenerationJob]:
        """One a prompt."""
        ...

    @property
    def streamed(self) -> bool:
        """The client wants frames."""
        ...

    @property
    def headers(self) -> dict[str, str]:
        """Headers about ignored fields."""
        ...

    async def whole(self, streams: Streams) -> dict[str, Any]:
        """The body of an answer that is not streamed.

        Raises:
            TandemError: the request was refused or failed.
        """
        ...

    def frames(self, streams: Streams) -> AsyncGenerator[bytes, None]:
        """The frames of a streamed answer.

        Raises:
            TandemError: the request was refused or failed; `failure` ends the stream then.
        """
        ...

    def failure(self, reply: ErrorReply) -> bytes:
        """What ends a stream that fails after its status was sent."""
        ...
