"""One request's life: admission, prefill, handoff, decode; deadlines, cancels and retries."""

import asyncio
import random
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

import structlog

from gateway.answer import Answer
from gateway.attempt import Attempt, Services
from gateway.debug.request_log import RequestLog
from gateway.entrance import Entrance, Place
from gateway.job import Event, Finished, GenerationJob, RequestReport, Try
from gateway.observer import RequestObserver
from gateway.principal import current_principal
from gateway.retry_budget import without_budget
from gateway.retry_policy import RetryPolicy
from gateway.run_state import RunState
from gateway.timeline import Timeline
from shared.errors import (
    HandoffError,
    InternalError,
    OverloadedError,
    TandemError,
    UnavailableError,
)
from shared.rpc.interceptors import InFlight
from shared.telemetry.spans import child_scope
from shared.tokenizer.tokenizer import Tokenizer

_BACKOFF_S = 0.05
_RETRYABLE = (UnavailableError, HandoffError, OverloadedError, InternalError)

_log = structlog.get_logger(__name__)


class Pipeline:
    """Answers jobs.

    Args:
        services: workers and the calls to them.
        entrance: who may enter, and when.
        tokenizer: turns answers into text.
        observer: told what happens.
        log: remembers requests.
        retries: what failed attempts may be followed by.
    """

    def __init__(
        self,
        services: Services,
        *,
        entrance: Entrance,
        tokenizer: Tokenizer,
        observer: RequestObserver,
        log: RequestLog,
        retries: RetryPolicy,
    ) -> None:
        self._services = services
        self._entrance = entrance
        self._tokenizer = tokenizer
        self._observer = observer
        self._log = log
        self._retries = retries
        self._jitter = random.Random()  # noqa: S311  spreads retries, guards nothing
        self.running = InFlight()

    def refuse_if_full(self) -> None:
        """To be asked before a request is read: tokenizing it for nothing costs the most.

        Raises:
            OverloadedError: the queue has room for nothing.
            UnavailableError: the gateway is shutting down.
        """
        self._entrance.refuse_if_full(current_principal())

    async def generate(self, job: GenerationJob) -> AsyncGenerator[Event, None]:
        """Yields text deltas, the first one at the first token, and one Finished an answer.

        The first deltas come in the order of the answers, whose later events mix as they come.

        Closing the iterator early cancels the work on both workers.

        Raises:
            TandemError: the request was refused or failed; nothing follows.
        """
        entered = time.monotonic()
        place = await self._enter(job)
        self._retries.budget.request()
        state = RunState(
            job=job,
            # A client may use one request id twice; a handoff id must be unique.
            handoff_id=f"{job.request_id}-{uuid.uuid4().hex[:8]}",
            answers=tuple(
                Answer(job, tokenizer=self._tokenizer, branch=b) for b in range(job.branches)
            ),
            place=place,
            observer=self._observer,
            report=RequestReport(
                traced=job.options.trace,
                timeline=Timeline(arrived=job.arrived, entered=entered),
            ),
        )
        finished: Finished | None = None
        try:
            with self._log.record(job, handoff_id=state.handoff_id, report=state.report):
                await self._wait_turn(state)
                with self._retries.replays.watched(state):
                    async with aclosing(self._attempts(state)) as events:
                        async for event in events:
                            if isinstance(event, Finished) and event.last:
                                finished = event
                            else:
                                yield event
        except (asyncio.CancelledError, GeneratorExit):
            self._observer.disconnected(state.phase)
            raise
        finally:
            self.running.leave()
            place.leave()
            self._settle(state)
        assert finished is not None, "an attempt that ends without an error ends every answer"
        yield finished

    async def _enter(self, job: GenerationJob) -> Place:
        """A place in the queue; from now on a drain waits for the request."""
        self.running.enter()
        try:
            return await self._entrance.enter(job)
        except BaseException as error:
            self.running.leave()
            if isinstance(error, asyncio.CancelledError):
                self._observer.disconnected("queue")
            raise

    async def _wait_turn(self, state: RunState) -> None:
        with child_scope("gateway.queue"):
            await self._entrance.wait(state.place, state.job)
        state.report.phases_s["gateway_queue"] = state.place.waited_s

    def _settle(self, state: RunState) -> None:
        """Charges the answer tokens, which may take a round trip, beside the end of the answer."""
        tokens = sum(answer.completion_tokens for answer in state.answers)
        if tokens:
            work = self._entrance.answered(state.job, tokens=tokens)
            self._services.background.spawn(work, name="charge answer tokens")

    async def _attempts(self, state: RunState) -> AsyncGenerator[Event, None]:
        failures = 0
        while True:
            pair = self._services.router.pair(
                state.read_tokens, planned=state.place.local, avoid=state.avoid
            )
            attempt = Attempt(state, pair=pair, services=self._services)
            tried = Try(prefill=pair.prefill.worker_id, decode=pair.decodes[0].worker_id)
            state.report.tries.append(tried)
            try:
                async with aclosing(attempt.run()) as events:
                    async for event in events:
                        yield event
            except _RETRYABLE as error:
                failures += 1
                tried.failed = error.error_code
                self._blame(state, attempt, error)
                await attempt.look_again(error)
                if not self._may_retry(state, error, failures):
                    named = attempt.named(error)
                    raise (without_budget(named) if state.out_of_budget else named) from error
                self._retrying(state, error)
            else:
                return
            await asyncio.sleep(_BACKOFF_S * failures * self._jitter.uniform(0.5, 1.5))

    def _may_retry(self, state: RunState, error: TandemError, failures: int) -> bool:
        if state.began_decode:
            return self._retries.replays.begin(state, error)
        if failures > self._retries.per_request:
            return False
        if isinstance(error, HandoffError) and failures > 1:
            return False
        overloaded = isinstance(error, OverloadedError)
        router, tokens = self._services.router, state.read_tokens
        if overloaded and not router.has_alternative(tokens, avoid=state.avoid):
            return False
        state.out_of_budget = not self._retries.budget.take()
        return not state.out_of_budget

    def _blame(self, state: RunState, attempt: Attempt, error: TandemError) -> None:
        self._services.workers.failed(attempt.blamed.worker_id, error)
        both = isinstance(error, HandoffError)
        state.avoid.update(attempt.workers() if both else {attempt.blamed.worker_id})

    def _retrying(self, state: RunState, error: TandemError) -> None:
        self._observer.retried(error.error_code)
        _log.warning(
            "attempt failed, trying again",
            handoff_id=state.handoff_id,
            code=error.error_code,
            reason=error.message,
        )
