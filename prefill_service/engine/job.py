"""One prompt on its way through the service, and the events its caller hears."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from prefill_service.engine.handoff_notes import HandoffNotes
from shared.errors import TandemError
from shared.grammar.matcher import TokenMatcher
from shared.types.handoff import HandoffKey
from shared.types.kv_manifest import PruningSummary
from shared.types.options import RequestOptions
from shared.types.sampling import SampledToken, SamplingParams, StopConditions
from shared.types.trace import PromptTrace

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Target:
    """A decode worker that may receive the KV."""

    worker_id: str
    """Its id in discovery."""
    address: str
    """host:port of its gRPC server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRequest:
    """What a caller asks for; checked against the model before it gets here."""

    key: HandoffKey
    """Names the handoff."""
    token_ids: Sequence[int]
    """The prompt, at least one token, and `earlier_tokens` of its answer."""
    sampling: SamplingParams
    """Sampling of the first token."""
    stop: StopConditions
    """Stop conditions; max_tokens sizes the decode reservation."""
    options: RequestOptions
    """Overrides of the profile."""
    targets: tuple[Target, ...]
    """Decode workers, best first; at least one."""
    deadline_s: float | None = None
    """Seconds left, or None."""
    matcher: TokenMatcher | None = None
    """What the answers must conform to, at their start; None: anything."""
    num_branches: int = 1
    """Answers to the prompt; each has a first token."""
    forced_first_tokens: tuple[int, ...] = ()
    """First tokens that the client saw already, one a branch, not sampled again; or none."""
    earlier_tokens: int = 0
    """A replay: how many of `token_ids`, at their end, are the answer's before the forced one."""

    def within(self, remaining_s: float | None) -> "PromptRequest":
        """The request with the earlier one of two deadlines: its own, and that of its call."""
        given = [s for s in (self.deadline_s, remaining_s) if s is not None]
        return replace(self, deadline_s=max(0.0, min(given))) if given else self


@dataclass(frozen=True, slots=True)
class Accepted:
    """The prompt is queued behind `queued_tokens` prompt tokens."""

    queued_tokens: int


@dataclass(frozen=True, slots=True)
class Started:
    """The prompt runs after `queue_seconds`, pruned as `pruning` says."""

    queue_seconds: float
    pruning: PruningSummary


@dataclass(frozen=True, slots=True)
class Progress:
    """`done_tokens` of `total_tokens` went through the lower layers."""

    done_tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """The first token of each branch, and who gave room for the KV."""

    tokens: tuple[SampledToken, ...]
    target: Target | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """A decode worker adopted the KV."""

    target: Target
    """Which one."""
    kv_bytes: int
    """Bytes moved."""
    transport: str
    """How."""
    kept_tokens: int
    """Tokens kept after the pruning layer."""
    phases: tuple[tuple[str, float], ...]
    """(phase, seconds): prefill, select, and what of the transfer came after them."""
    lease_s: float
    """Seconds the KV is held for a resend."""
    trace: PromptTrace | None = None
    """What was kept, when the request asked."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The prompt failed or was stopped."""

    error: TandemError


Event = Accepted | Started | Progress | FirstTokens | Sealed | Failed


class PrefillJob:
    """A prompt's state on the loop; only `stopping` may be read by the engine thread.

    Exactly one terminal event (Sealed or Failed) ends `events`; later ones are dropped.

    Args:
        request: what to do.
    """

    def __init__(self, request: PromptRequest) -> None:
        self.request = request
        self.created = time.monotonic()
        self.context = copy_context()
        """The caller's request id and trace, for the tasks that work on the prompt."""
        self.notes = HandoffNotes() if request.options.trace else None
        """Moments of its handoff, when the request asked for a trace."""
        self._room_at: Target | None = None
        self._withheld: FirstTokens | None = None
        self.outcome: Sealed | Failed | None = None
        self.timer: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._stopped = asyncio.Event()
        self._stop_flag = threading.Event()
        self._stop_error: TandemError | None = None

    @property
    def key(self) -> HandoffKey:
        """The handoff's name."""
        return self.request.key

    @property
    def tokens(self) -> int:
        """Prompt tokens."""
        return len(self.request.token_ids)

    @property
    def done(self) -> bool:
        """Whether the terminal event was given."""
        return self.outcome is not None

    def stopping(self) -> bool:
        """Whether somebody asked to stop; safe in any thread."""
        return self._stop_flag.is_set()

    def stop(self, error: TandemError) -> bool:
        """Asks for an end with `error`; the first reason stays. False when it is over already."""
        if self.done or self._stop_error is not None:
            return False
        self._stop_error = error
        self._stop_flag.set()
        self._stopped.set()
        return True

    @property
    def stop_error(self) -> TandemError:
        """Why it was asked to stop; only after `stop`."""
        assert self._stop_error is not None, "asked for before a stop"
        return self._stop_error

    def raise_if_stopped(self) -> None:
        """Raises the reason for which it was asked to stop, if it was."""
        if self._stop_error is not None:
            raise self._stop_error

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work`, or ends it and raises the reason as soon as somebody asks to stop."""
        task = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        finally:
            stopped.cancel()
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        raise self.stop_error

    def has_room(self, at: Target) -> None:
        """A decode worker takes the KV: the caller may hear of first tokens."""
        self._room_at = at
        withheld, self._withheld = self._withheld, None
        if withheld is not None:
            self.emit(withheld)

    def emit(self, event: Event) -> None:
        """Passes an event to the caller; nothing follows a terminal one.

        First tokens wait for room on the decode side: an answer that began cannot be refused.
        """
        if self.done:
            return
        if isinstance(event, FirstTokens):
            if self._room_at is None:
                self._withheld = event
                return
            event = replace(event, target=self._room_at)
        if isinstance(event, Sealed | Failed):
            self.outcome = event
            self._ended.set()
        self._events.put_nowait(event)

    async def wait_outcome(self) -> Sealed | Failed:
        """The terminal event, once there is one."""
        await self._ended.wait()
        assert self.outcome is not None, "the event is set with the outcome"
        return self.outcome

    async def events(self) -> AsyncIterator[Event]:
        """Every event in order; ends after the terminal one. For one reader."""
        while True:
            event = await self._events.get()
            yield event
            if isinstance(event, Sealed | Failed):
                return
