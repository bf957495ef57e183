"""Decode calls that are made while the KV is on its way: they wait for it at the decode worker.

Who gets the KV is known at the first token. A call that is there before the KV saves the second
token the way from the decode worker over the prefill worker and the gateway back to it.

Nothing is read from such a call until the prefill worker has told that the KV was adopted. One that
failed by then, or waits at a worker that did not get the KV after all, counts for nothing: the call
is made again. Only what a worker refuses for good is not asked twice, since the worker has dropped
the handoff with it.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence

import structlog

from gateway.background import end_tasks
from gateway.clients.events import DecodeEvent, Target
from shared.errors import HandoffError, OverloadedError, TandemError, UnavailableError

RESENDABLE = (UnavailableError, HandoffError, OverloadedError)
"""Failures of a Decode call that another call may not meet."""

DecodeStream = AsyncGenerator[DecodeEvent, None]

_log = structlog.get_logger(__name__)


class EarlyCalls:
    """Of one handoff, one a branch; to be closed at the end, whatever became of them.

    Args:
        target: whom they are made to; None: there are none.
        streams: their events, by branch; the calls are made at once.
    """

    def __init__(self, target: Target | None = None, streams: Sequence[DecodeStream] = ()) -> None:
        self.target = target
        self._calls = {branch: _EarlyCall(stream) for branch, stream in enumerate(streams)}

    @property
    def refusal(self) -> TandemError | None:
        """Why the worker refused one of them for good; it dropped the handoff then."""
        refusals = (call.refusal for call in self._calls.values())
        return next((error for error in refusals if error is not None), None)

    async def taken(self, branch: int, *, target: Target) -> DecodeStream | None:
        """The events of a branch, once the worker has accepted it; None where it has to be called.

        Args:
            branch: which answer; it is asked for once.
            target: who holds the KV.

        Raises:
            TandemError: the worker refused the call for good.
        """
        if target != self.target:
            await self.close()
        call = self._calls.get(branch)
        if call is None or not await call.accepted():
            return None
        del self._calls[branch]
        return call.events()

    async def close(self) -> None:
        """Cancels those that were not taken; twice is fine."""
        calls, self._calls = list(self._calls.values()), {}
        for call in calls:
            await call.close()


class _EarlyCall:
    def __init__(self, stream: DecodeStream) -> None:
        self._stream = stream
        self._first = asyncio.ensure_future(anext(stream))

    @property
    def refusal(self) -> TandemError | None:
        if not self._first.done() or self._first.cancelled():
            return None
        error = self._first.exception()
        if isinstance(error, TandemError) and not isinstance(error, RESENDABLE):
            return error
        return None

    async def accepted(self) -> bool:
        try:
            await asyncio.shield(self._first)
        except StopAsyncIteration:
            return False
        except RESENDABLE as error:
            _log.info("a call ahead of the KV came to nothing", reason=error.message)
            return False
        return True

    async def events(self) -> DecodeStream:
        try:
            yield self._first.result()
            async for event in self._stream:
                yield event
        finally:
            await self._stream.aclose()

    async def close(self) -> None:
        await end_tasks(self._first)
        await self._stream.aclose()
