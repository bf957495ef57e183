"""One request's life: admission, prefill, handoff, decode; deadlines, cancels and retries."""

import asyncio
import random
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

import structlog

from gateway.admission import Admission
from gateway.answer import Answer
from gateway.attempt import Attempt, Services
from gateway.job import Event, Finished, GenerationJob
from gateway.observer import RequestObserver
from gateway.run_state import RunState
from shared.errors import (
    HandoffError,
    InternalError,
    OverloadedError,
    TandemError,
    UnavailableError,
)
from shared.rpc.interceptors import InFlight
from shared.tokenizer.tokenizer import Tokenizer

_BACKOFF_S = 0.05
_RETRYABLE = (UnavailableError, HandoffError, OverloadedError, InternalError)

_log = structlog.get_logger(__name__)


class Pipeline:
    """Answers jobs.

    Args:
        services: workers and the calls to them.
        admission: who may enter.
        tokenizer: turns answers into text.
        observer: told what happens.
        max_retries: attempts after the first.
    """

    def __init__(
        self,
        services: Services,
        *,
        admission: Admission,
        tokenizer: Tokenizer,
        observer: RequestObserver,
        max_retries: int,
    ) -> None:
        self._services = services
        self._admission = admission
        self._tokenizer = tokenizer
        self._observer = observer
        self._max_retries = max_retries
        self.running = InFlight()

    async def generate(self, job: GenerationJob) -> AsyncGenerator[Event, None]:
        """Yields text deltas, the first one at the first token, and one Finished an answer.

        The first deltas come in the order of the answers, whose later events mix as they come.

        Closing the iterator early cancels the work on both workers.

        Raises:
            TandemError: the request was refused or failed; nothing follows.
        """
        ticket = self._admission.enter(len(job.prompt_ids))
        state = RunState(
            job=job,
            # A client may use one request id twice; a handoff id must be unique.
            handoff_id=f"{job.request_id}-{uuid.uuid4().hex[:8]}",
            answers=tuple(
                Answer(job, tokenizer=self._tokenizer, branch=b) for b in range(job.branches)
            ),
            ticket=ticket,
            observer=self._observer,
        )
        self.running.enter()
        try:
            finished: Finished | None = None
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
            ticket.leave()
        assert finished is not None, "an attempt that ends without an error ends every answer"
        yield finished

    async def _attempts(self, state: RunState) -> AsyncGenerator[Event, None]:
        failures = 0
        while True:
            pair = self._services.workers.choose(avoid=state.avoid)
            attempt = Attempt(state, pair=pair, services=self._services)
            try:
                async with aclosing(attempt.run()) as events:
                    async for event in events:
                        yield event
            except _RETRYABLE as error:
                failures += 1
                self._blame(state, attempt, error)
                await attempt.look_again(error)
                if not self._may_retry(state, error, failures):
                    raise attempt.named(error) from error
                self._retrying(state, error)
            else:
                return
            await asyncio.sleep(_BACKOFF_S * failures * random.uniform(0.5, 1.5))  # noqa: S311

    def _may_retry(self, state: RunState, error: TandemError, failures: int) -> bool:
        if state.began_decode or failures > self._max_retries:
            return False
        if isinstance(error, HandoffError):
            return failures == 1
        if isinstance(error, OverloadedError):
            return self._services.workers.has_alternative(avoid=state.avoid)
        return True

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
