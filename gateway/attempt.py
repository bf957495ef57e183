"""One attempt of one request on one pair of workers."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

import structlog

from gateway.background import Background
from gateway.clients.decode import DecodeClient
from gateway.clients.events import (
    DecodeAccepted,
    DecodeEvent,
    DecodeFinished,
    FirstTokens,
    PrefillStarted,
    Sealed,
    Target,
    Tokens,
)
from gateway.clients.prefill import PrefillClient
from gateway.early_calls import RESENDABLE, DecodeStream, EarlyCalls
from gateway.job import Event
from gateway.local_prefill import Router
from gateway.merge import merged
from gateway.prober import Prober
from gateway.run_state import RunState
from gateway.worker_calls import decode_call, prefill_call
from gateway.workers import Pair, Workers
from shared.errors import HandoffError, InternalError, TandemError, UnavailableError
from shared.types.handoff import HandoffKey
from shared.types.sampling import SampledToken

_DRAIN_S = 2.0
_HEARTBEATS_PER_LEASE = 6
NO_DECODE_WORKER = "no_decode_worker"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What an attempt works with."""

    prefill: PrefillClient
    """Calls to prefill workers."""
    decode: DecodeClient
    """Calls to decode workers."""
    workers: Workers
    """Load accounts and breakers."""
    background: Background
    """Runs what must not wait for the client."""
    router: Router
    """Decides who reads a prompt."""
    prober: Prober
    """Looks again at workers that could not be reached."""


class Attempt:
    """Prefill on one worker, decode on another.

    Closing `run()` early, or an error in it, tells both workers: the streams are cancelled and
    Cancel or Abort is sent, so that either way alone is enough.

    Args:
        state: the request.
        pair: the chosen workers.
        services: the rest of the gateway.
    """

    def __init__(self, state: RunState, *, pair: Pair, services: Services) -> None:
        self._state = state
        self._pair = pair
        self._services = services
        self._key = state.next_key()
        self._prefill_key = self._key
        self._targets = list(pair.decodes)
        self._redeliveries = 0
        self._computed = False
        self._sealed: Sealed | None = None
        self._heartbeat: asyncio.Task[None] | None = None
        self._pruning = "not known"
        self._decoding = False
        self._early = EarlyCalls()
        self._running: set[int] = set()
        self._complete: set[int] = set()
        self.blamed: Target = pair.prefill

    async def look_again(self, error: TandemError) -> None:
        """After a failed hop, finds out who is gone before anybody is sent there again."""
        if isinstance(error, HandoffError) or error.error_code == NO_DECODE_WORKER:
            await self._services.prober.look(self._targets)
        elif isinstance(error, UnavailableError) and error.error_code == UnavailableError.code:
            await self._services.prober.look([self.blamed])

    def named(self, error: TandemError) -> TandemError:
        """The error as clients know it: a worker that went away is one of its role that lacks."""
        if error.error_code != UnavailableError.code:
            return error
        read_apart = not self._pair.local and self.blamed == self._pair.prefill
        role = "prefill" if read_apart else "decode"
        return UnavailableError(
            error.message, code=f"no_{role}_worker", retry_after_s=error.retry_after_s
        )

    def workers(self) -> set[str]:
        """Names of both workers of the pair."""
        decode = self._sealed.target if self._sealed is not None else self._targets[0]
        return {self._pair.prefill.worker_id, decode.worker_id}

    async def run(self) -> AsyncGenerator[Event, None]:
        """Yields text until every answer is complete, and the end of each.

        Raises:
            TandemError: the attempt failed; `blamed` names the worker.
        """
        tokens = self._state.read_tokens
        held = self._services.workers.hold
        try:
            # The decode worker that is to get the KV counts it from here on: otherwise all prompts
            # that are read at one moment are meant for the one that was lightest. One that reads it
            # itself counts twice until that is done: it has the reading, which holds its answers
            # up, and the answer to come, and a prompt that is read elsewhere goes to another one.
            likely = self._targets[0].worker_id
            with held(self._pair.prefill.worker_id, tokens), held(likely, tokens):
                async with aclosing(self._prefill()) as events:
                    async for event in events:
                        yield event
            if self._sealed is not None:
                with held(self._sealed.target.worker_id, tokens):
                    async with aclosing(self._decode()) as events:
                        async for event in events:
                            yield event
        finally:
            self._stop_heartbeat()
            if len(self._complete) < self._state.job.branches:
                self._abandon()
            await self._early.close()

    async def _prefill(self) -> AsyncGenerator[Event, None]:
        try:
            async with aclosing(self._prefill_once()) as events:
                async for event in events:
                    yield event
        except HandoffError as error:
            if not self._computed:
                raise
            if (refusal := self._early.refusal) is not None:
                raise refusal from error
            # The prompt was computed and is held: another delivery saves computing it again.
            await self._redeliver(error, self._targets)

    async def _prefill_once(self) -> AsyncGenerator[Event, None]:
        state = self._state
        call = prefill_call(state, handoff=self._key, targets=self._targets)
        stream = self._services.prefill.prefill(
            self._pair.prefill.address, call, timeout_s=state.remaining_s()
        )
        async with aclosing(stream) as events:
            async for event in events:
                match event:
                    case PrefillStarted():
                        self._started(event)
                    case FirstTokens():
                        # Only now: a worker that takes prompts and fails at each is no good one.
                        self._services.workers.succeeded(self._pair.prefill.worker_id)
                        self._computed = True
                        if not state.shown:
                            for delta in state.take_firsts(self._one_each(event.tokens)):
                                yield delta
                            if state.answered:
                                for branch in range(state.job.branches):
                                    yield state.finish(branch)
                                return
                        self._call_early(event.target)
                    case Sealed():
                        self._take_sealed(event)
                        await _read_out(events)
                        return
        raise UnavailableError("the prefill worker ended its stream too early: it is stopping")

    async def _decode(self) -> AsyncGenerator[Event, None]:
        while True:
            try:
                branches = range(self._state.job.branches)
                streams = merged([self._decode_once(branch) for branch in branches])
                async with aclosing(streams) as events:
                    async for event in events:
                        yield event
            except RESENDABLE as error:
                if self._running:
                    raise
                await self._resend(error)
            else:
                return

    async def _decode_once(self, branch: int) -> AsyncGenerator[Event, None]:
        assert self._sealed is not None
        target = self._sealed.target
        self.blamed = target
        self._decoding = True
        early = await self._early.taken(branch, target=target)
        async with aclosing(early or self._call(target, branch)) as events:
            async for event in events:
                match event:
                    case DecodeAccepted():
                        # It may have died since: only a token shows that it decodes.
                        self._state.report.timeline.decoding = event.heard_at
                    case Tokens():
                        self._taken_over(target, branch)
                        yield self._state.take_more(branch, event.tokens)
                        if self._state.answers[branch].reason is not None:
                            await self._await_end(events, branch)
                            yield self._state.finish(branch)
                            return
                    case DecodeFinished():
                        self._taken_over(target, branch)
                        self._complete.add(branch)
                        yield self._state.decoded(branch, event)
                        await _read_out(events)
                        yield self._state.finish(branch)
                        return
        raise UnavailableError("the decode worker ended its stream too early: it is stopping")

    def _call_early(self, target: Target | None) -> None:
        """Calls who will get the KV, if that is known: the call waits there."""
        if target is None:
            return
        branches = range(self._state.job.branches)
        self._early = EarlyCalls(target, [self._call(target, branch) for branch in branches])

    def _call(self, target: Target, branch: int) -> DecodeStream:
        """Calls a decode worker when its first event is asked for."""
        call = decode_call(self._state, handoff=self._key, branch=branch)
        return self._services.decode.decode(
            target.address, call, timeout_s=self._state.remaining_s()
        )

    async def _await_end(self, events: AsyncIterator[DecodeEvent], branch: int) -> None:
        """The decode worker finds the same end by itself; its counters come with it."""
        try:
            async with asyncio.timeout(_DRAIN_S):
                async for event in events:
                    if isinstance(event, DecodeFinished):
                        self._state.decoded(branch, event)
                        self._complete.add(branch)
        except TimeoutError:
            _log.warning("decode worker ran past the end", worker=self.blamed.worker_id)
        except TandemError as error:
            _log.warning("no counters of a complete answer", reason=error.message)

    async def _resend(self, error: TandemError) -> None:
        """Another decode worker, or the only one again, gets the KV that prefill still holds."""
        assert self._sealed is not None
        refused = self._sealed.target
        self._services.workers.failed(refused.worker_id, error)
        self._tell_decode(refused, self._key)
        others = [target for target in self._targets if target != refused]
        alive = [refused] if isinstance(error, HandoffError) else []
        await self._redeliver(error, others or alive)

    async def _redeliver(self, error: TandemError, targets: list[Target]) -> None:
        """One more delivery under a new attempt; as many as there are decode workers at most."""
        if not targets or self._redeliveries >= len(self._pair.decodes):
            raise error
        self._redeliveries += 1
        self._targets = targets
        await self._early.close()
        _log.info("second delivery", reason=error.error_code, handoff_id=self._key.handoff_id)
        self._key = self._state.next_key()
        sealed = await self._services.prefill.resend(
            self._pair.prefill.address,
            self._prefill_key,
            new_attempt=self._key.attempt,
            targets=targets,
            timeout_s=self._state.remaining_s(),
        )
        self._take_sealed(sealed)

    def _one_each(self, tokens: tuple[SampledToken, ...]) -> tuple[SampledToken, ...]:
        if len(tokens) != self._state.job.branches:
            raise InternalError(
                f"the prefill worker sent {len(tokens)} first tokens for "
                f"{self._state.job.branches} answers: a defect, or an older release; see its log"
            )
        return tokens

    @property
    def _all_running(self) -> bool:
        return len(self._running) == self._state.job.branches

    def _started(self, event: PrefillStarted) -> None:
        self._state.started(event)
        pruned = "pruned" if event.pruned else "not pruned"
        self._pruning = f"{pruned}: {event.pruning_reason}"
        self._note_route(self._targets[0])

    def _note_route(self, decode: Target) -> None:
        pair = self._pair
        who = f"pair: {pair.prefill.worker_id} -> {decode.worker_id}"
        if pair.local:
            who = f"local: {decode.worker_id} reads the prompt itself, {pair.local}"
        self._state.report.tries[-1].decode = decode.worker_id
        self._state.report.route = (
            f"{who}; {pair.reason}; {self._pruning}; attempt {self._key.attempt}"
        )
        if self._state.replays:
            replayed = self._state.report.replayed_tokens
            self._state.report.route += f"; a replay from answer token {replayed}"

    def _take_sealed(self, event: Sealed) -> None:
        self._sealed = event
        self._note_route(event.target)
        self._state.sealed(event)
        self._stop_heartbeat()
        self._heartbeat = self._services.background.spawn(self._renew(event), name="renew")

    def _taken_over(self, target: Target, branch: int) -> None:
        """Once every branch runs, nothing will ask the prefill worker for the KV again."""
        if branch in self._running:
            return
        self._running.add(branch)
        self._services.workers.succeeded(target.worker_id)
        if not self._all_running:
            return
        self._stop_heartbeat()
        self._services.background.spawn(
            self._services.prefill.release(self._pair.prefill.address, self._prefill_key),
            name="release",
        )

    async def _renew(self, sealed: Sealed) -> None:
        pause = max(0.05, sealed.lease_s / _HEARTBEATS_PER_LEASE)
        while True:
            await asyncio.sleep(pause)
            await self._services.prefill.renew(self._pair.prefill.address, self._prefill_key)

    def _stop_heartbeat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None

    def _abandon(self) -> None:
        services = self._services
        if not self._all_running:
            services.background.spawn(
                services.prefill.cancel(self._pair.prefill.address, self._prefill_key),
                name="cancel prefill",
            )
        targets = self._targets if self._sealed is None else [self._sealed.target]
        for target in targets:
            self._tell_decode(target, self._key)

    def _tell_decode(self, target: Target, key: HandoffKey) -> None:
        decode, background = self._services.decode, self._services.background
        if self._decoding:
            background.spawn(decode.cancel(target.address, key), name="cancel decode")
        if not self._all_running:
            abort = decode.abort(target.address, key, reason="request is over")
            background.spawn(abort, name="abort decode")


async def _read_out(events: AsyncIterator[object]) -> None:
    """Lets a worker end its stream by itself: a cancel now would look like a client that left."""
    try:
        async with asyncio.timeout(_DRAIN_S):
            async for _ in events:
                pass
    except (TimeoutError, TandemError) as error:
        _log.warning("a stream did not end after its last event", reason=str(error))
