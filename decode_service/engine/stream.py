"""Tokens on their way from the engine thread to one reader on the event loop, bounded in number."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from shared.errors import TandemError
from shared.types.sampling import FinishReason, SampledToken
from shared.types.trace import PageTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a generation ended."""

    reason: FinishReason
    """Why."""
    stop_match: str = ""
    """The stop string, or the stop id in decimal, that matched."""
    generated_tokens: int = 0
    """Tokens generated here, the first one not counted."""
    attended: int = 0
    """KV slots read, summed over layers and steps."""
    dense: int = 0
    """KV slots that full attention over the unpruned prompt would have read."""
    refreshes: int = 0
    """Choices of pages that layers which read everything made anew."""
    phases: tuple[tuple[str, float], ...] = ()
    """(decode_queue, first_decode or decode, seconds)."""
    error: TandemError | None = None
    """Set when reason is ERROR."""
    trace: PageTrace | None = None
    """Which pages were read, when the request asked."""


class TokenStream:
    """One writer (the engine) and one reader; the writer looks at `full` and never waits.

    Args:
        limit: unread tokens at which the stream is full.
        on_room: called on the event loop when a full stream has room again.
    """

    def __init__(self, *, limit: int, on_room: Callable[[], None]) -> None:
        self._limit = limit
        self._on_room = on_room
        self._sent = 0  # written by the engine thread alone
        self._read = 0  # written by the event loop alone
        self._handed_out = 0
        self._tokens: list[SampledToken] = []
        self._ending: Ending | None = None
        self._ready = asyncio.Event()

    @property
    def full(self) -> bool:
        """Whether the reader is too far behind; asked by the engine thread."""
        return self._sent - self._read >= self._limit

    def count(self, num_tokens: int) -> None:
        """Engine thread: tokens were sent off to `deliver`."""
        self._sent += num_tokens

    def deliver(self, tokens: list[SampledToken], ending: Ending | None) -> None:
        """Event loop: takes what the engine sent; nothing follows an ending."""
        assert self._ending is None, "a stream ends once"
        self._tokens += tokens
        self._ending = ending
        self._ready.set()

    async def next(self) -> tuple[list[SampledToken], Ending | None]:
        """Waits for tokens, the ending or both; asking again says that the last ones are read."""
        self._acknowledge()
        await self._ready.wait()
        tokens, self._tokens = self._tokens, []
        self._handed_out = len(tokens)
        if self._ending is None:
            self._ready.clear()
        return tokens, self._ending

    def _acknowledge(self) -> None:
        num_read, self._handed_out = self._handed_out, 0
        self._read += num_read
        # Looked at after the update: an engine that saw the stream full is told, one that looks
        # later sees the room itself.
        unread = self._sent - self._read
        if unread < self._limit <= unread + num_read:
            self._on_room()
