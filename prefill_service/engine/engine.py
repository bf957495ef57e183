"""The prompt loop: takes prompts in turn, computes them, delivers each beside the next.

A prompt's turn ends with its last layer; its delivery goes on in its own task. Whatever ends a
prompt, it gives exactly one last event and leaves nothing behind.
"""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any

import structlog

from prefill_service.engine.batcher import Batcher
from prefill_service.engine.job import Accepted, Failed, PrefillJob, PromptRequest, Sealed, Target
from prefill_service.engine.prompt_run import PromptRun, resend
from prefill_service.engine.services import Services
from shared.errors import (
    CancelledError,
    DeadlineError,
    HandoffError,
    InternalError,
    InvalidRequestError,
    TandemError,
    UnavailableError,
)
from shared.types.handoff import HandoffKey
from shared.types.pair_state import PairState

REAP_SECONDS = 0.25
"""How often leases are looked at, at most."""

COUNTDOWN_SECONDS = 5.0
"""How often a drain says how much time is left."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """How busy the engine is."""

    draining: bool
    """No new prompts."""
    queued_requests: int
    """Prompts waiting."""
    queued_tokens: int
    """Their tokens."""
    running_requests: int
    """Prompts in compute or delivery, resends included."""
    stalled_seconds: float
    """Seconds without progress while a prompt runs; 0 when idle."""
    held_handoffs: int
    """KV caches held for a resend."""
    held_bytes: int
    """Their host bytes."""
    active_bytes: int
    """Host bytes of prompts that run."""
    expired_holds: int
    """Holds that ended by their lease, since the start."""
    tokens_per_second: float
    """Recent speed."""
    quarantined_bytes: int = 0
    """Bytes of ended prompts that a transfer may still read."""
    quarantines: int = 0
    """Slabs that came into quarantine, since the start."""
    pairs: tuple[PairState, ...] = ()
    """How the transports to decode workers fare."""


class PrefillEngine:
    """Owns every prompt from `submit` to its last event; all methods belong to one loop.

    Args:
        services: its parts.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._batcher = Batcher(
            services.queue,
            compute=services.compute,
            limits=services.pack,
            speed=services.speed,
            passed=services.recorder.passed,
        )
        self._jobs: dict[HandoffKey, PrefillJob] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False

    def start(self) -> None:
        """Begins to take prompts; call it once, inside the loop."""
        self._loops = [
            asyncio.create_task(self._take_turns(), name="prefill-turns"),
            asyncio.create_task(self._batcher.run_passes(), name="prefill-passes"),
            asyncio.create_task(self._reap(), name="prefill-reaper"),
        ]

    def submit(self, request: PromptRequest) -> PrefillJob:
        """Queues a prompt.

        Raises:
            OverloadedError: the queue is full.
            UnavailableError: the worker drains.
            InvalidRequestError: the handoff was used before.
        """
        self._check_new(request.key)
        job = PrefillJob(request)
        ahead = self._services.queue.put(job)
        self._adopt(job)
        job.emit(Accepted(ahead))
        return job

    def resend(
        self,
        sealed_key: HandoffKey,
        *,
        new_attempt: int,
        targets: tuple[Target, ...],
        deadline_s: float | None,
    ) -> PrefillJob:
        """Delivers held KV to another decode worker, beside whatever is computed.

        Raises:
            HandoffError: nothing is held under this name.
            InvalidRequestError: the new attempt was used before.
        """
        key = HandoffKey(sealed_key.handoff_id, new_attempt)
        self._check_new(key, drains=False)
        held = self._services.held.get(sealed_key)
        if held is None:
            raise HandoffError(
                f"nothing is held for handoff {sealed_key.handoff_id} attempt "
                f"{sealed_key.attempt}: it was released, its lease ended or memory was short; "
                "send the prompt again"
            )
        job = PrefillJob(
            replace(held.parcel.request, key=key, targets=targets, deadline_s=deadline_s)
        )
        self._adopt(job)
        self._spawn(job, resend(job, held=held, services=self._services))
        return job

    def renew(self, keys: list[HandoffKey]) -> list[HandoffKey]:
        """Prolongs holds; returns the names that hold nothing."""
        return self._services.held.renew(keys)

    def release(self, key: HandoffKey) -> bool:
        """Drops a hold; False when there is none."""
        return self._services.held.release(key)

    def cancel(self, key: HandoffKey, *, why: str = "its caller cancelled it") -> bool:
        """Stops a prompt in any phase, or drops its hold; False when there is nothing to end."""
        job = self._jobs.get(key)
        if job is None:
            return self._services.held.release(key)
        return self._stop(job, CancelledError(f"the request was stopped: {why}"))

    def load(self) -> EngineLoad:
        """The load at this moment."""
        services = self._services
        return EngineLoad(
            draining=self._draining,
            queued_requests=len(services.queue),
            queued_tokens=services.queue.queued_tokens,
            running_requests=len(self._jobs) - len(services.queue),
            stalled_seconds=services.compute.stalled_seconds(),
            held_handoffs=len(services.held),
            held_bytes=services.held.held_bytes,
            active_bytes=services.held.active_bytes,
            expired_holds=services.held.expired_total,
            tokens_per_second=services.speed.tokens_per_second,
            quarantined_bytes=services.slabs.quarantined_bytes,
            quarantines=services.slabs.quarantines,
            pairs=services.links.pairs.states(),
        )

    @property
    def lease_s(self) -> float:
        """Seconds that a hold lasts."""
        return self._services.held.lease_s

    def start_drain(self) -> None:
        """Takes no new prompts from now on; queued ones are still served."""
        self._draining = True

    async def wait_idle(self, timeout_s: float) -> bool:
        """Waits until no prompt is queued, computed or delivered; False when time ran out."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def drain(self, cap_s: float) -> None:
        """Takes no new prompts, finishes queued and running ones, stops what is left at the cap."""
        self.start_drain()
        until = time.monotonic() + cap_s
        while (left := until - time.monotonic()) > 0:
            if await self.wait_idle(min(COUNTDOWN_SECONDS, left)):
                _log.info("drained")
                return
            left = round(max(0.0, until - time.monotonic()), 1)
            _log.info("draining", prompts=len(self._jobs), seconds_left=left)
        await self.stop_all()

    async def stop_all(self) -> None:
        """Stops every prompt and waits for its end."""
        error = UnavailableError("the prefill worker shuts down before this prompt was done; retry")
        for job in list(self._jobs.values()):
            self._stop(job, error)
        await self._idle.wait()

    async def close(self) -> None:
        """Stops everything and waits for it; twice is fine."""
        self._draining = True
        await self.stop_all()
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, *self._tasks, return_exceptions=True)
        self._services.held.clear()
        await asyncio.to_thread(self._services.compute.close)

    def _check_new(self, key: HandoffKey, *, drains: bool = True) -> None:
        if drains and self._draining:
            raise UnavailableError(
                "this prefill worker drains and takes no new prompts; retry elsewhere",
                code="draining",
            )
        if key in self._jobs or self._services.held.get(key) is not None:
            raise InvalidRequestError(
                f"handoff {key.handoff_id} attempt {key.attempt} was used before: every try needs "
                "its own attempt number; count it up",
                param="handoff",
            )

    def _adopt(self, job: PrefillJob) -> None:
        self._jobs[job.key] = job
        self._idle.clear()
        if job.request.deadline_s is not None:
            error = DeadlineError(
                f"the request's time of {job.request.deadline_s:.3f} s is over before its prefill "
                "was: the service is slow or busy; allow more time or add prefill workers"
            )
            loop = asyncio.get_running_loop()
            job.timer = loop.call_later(job.request.deadline_s, self._stop, job, error)

    def _stop(self, job: PrefillJob, error: TandemError) -> bool:
        stopped = job.stop(error)
        if stopped and self._batcher.drop(job.key):
            self._finish(job, Failed(error))
        return stopped

    async def _take_turns(self) -> None:
        while True:
            turn = await self._batcher.next()
            self._spawn(turn.job, PromptRun(turn, services=self._services).run())

    def _spawn(self, job: PrefillJob, work: Coroutine[Any, Any, Sealed]) -> None:
        task = asyncio.create_task(
            self._run_to_end(job, work),
            name=f"prefill-{job.key.handoff_id}-{job.key.attempt}",
            context=job.context,
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_to_end(self, job: PrefillJob, work: Coroutine[Any, Any, Sealed]) -> None:
        # Also what a cancel of this very task leaves: no prompt ends without a last event.
        outcome: Sealed | Failed = Failed(
            InternalError("this prompt ended in a way it should not: see the worker's log")
        )
        try:
            outcome = await work
        except TandemError as error:
            outcome = Failed(error)
        except Exception:  # noqa: BLE001  the border of a prompt: its caller must hear of the end
            _log.exception("prompt failed", handoff_id=job.key.handoff_id)
        finally:
            self._finish(job, outcome)

    def _finish(self, job: PrefillJob, outcome: Sealed | Failed) -> None:
        if job.timer is not None:
            job.timer.cancel()
        del self._jobs[job.key]
        if not self._jobs:
            self._idle.set()
        job.emit(outcome)
        self._services.recorder.ended(job, outcome)

    async def _reap(self) -> None:
        every = min(REAP_SECONDS, self._services.held.lease_s / 4)
        while True:
            await asyncio.sleep(every)
            expired = self._services.held.expire()
            if expired:
                _log.warning("held KV expired", handoffs=expired)
