"""The decode loop: one thread steps all rows; the event loop talks to it through commands.

Commands (join, leave, work on the KV pages) take effect between two steps. Tokens and endings go
back to the event loop in one batch a step. A step never waits for a reader, for the network or for
a lock that is held long. The event loop owns pages; a row's `on_end` tells it that the engine has
let go of them.
"""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import structlog

from decode_service.engine.scheduler import Row, Scheduler
from decode_service.engine.sequence import Sequence
from decode_service.engine.stop import StopVerdict
from decode_service.engine.stream import Ending
from shared.errors import (
    DeadlineError,
    InternalError,
    InvalidRequestError,
    TandemError,
    UnavailableError,
)
from shared.types.sampling import FinishReason, SampledToken

T = TypeVar("T")

JOIN_S = 5.0
"""Longest wait for the thread to end; a thread that hangs ends with the process."""

FAILING_STEPS = 3
"""Steps with an error in succession after which the engine calls itself unhealthy."""

_log = structlog.get_logger(__name__)


class StepRunner(Protocol):
    """Advances rows by one token."""

    def step(self, rows: list[Sequence]) -> list[SampledToken]:
        """One token a row; a row that raised may be stepped again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What the metrics want to know of a step."""

    rows: int
    """Rows that took part."""
    seconds: float
    """Duration."""
    tokens: int
    """Tokens that came out of it."""
    preempted: int = 0
    """Rows that took part in the step before, have not ended and sat this one out."""


@dataclass(frozen=True, slots=True)
class _Event:
    row: Row
    tokens: list[SampledToken]
    ending: Ending | None


class DecodeEngine:
    """Owner of the engine thread.

    Args:
        runner: does the arithmetic.
        scheduler: chooses the rows of a step.
        clock: monotonic seconds.
        on_step: called on the event loop after each step.
    """

    def __init__(
        self,
        runner: StepRunner,
        scheduler: Scheduler,
        *,
        clock: Callable[[], float],
        on_step: Callable[[StepReport], None],
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._clock = clock
        self._on_step = on_step
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._main, name="decode-engine", daemon=True)
        self._wake = threading.Condition()
        self._commands: list[Callable[[], None]] = []
        self._stopping = False
        self._busy_since: float | None = None
        self._events: list[_Event] = []
        self._failed_steps = 0
        self._last_batch: frozenset[Row] = frozenset()
        self.crashed = False
        self.num_running = 0
        self.num_waiting = 0

    # --- event loop -------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    async def stop(self) -> None:
        """Ends all rows with `unavailable`, then the thread; twice is fine."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, JOIN_S)
        await asyncio.sleep(0)  # what the thread posted last is delivered

    def join(self, row: Row) -> None:
        """Lets a row take part from the next step on."""
        self._must(lambda: self._scheduler.add(row))

    def cancel(self, row: Row) -> None:
        """Ends a row before the next step; one that has ended is left alone."""
        self._command(lambda: self._end(row, FinishReason.CANCELLED))

    def poke(self) -> None:
        """Looks at the rows again: a reader has caught up."""
        self._command(lambda: None)

    async def between_steps(self, work: Callable[[], T]) -> T:
        """Runs `work` on the engine thread between two steps and returns its result."""
        done: asyncio.Future[T] = self._loop.create_future()

        def run() -> None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001  it belongs to the caller, not to the loop
                self._loop.call_soon_threadsafe(_fail, done, error)
            else:
                self._loop.call_soon_threadsafe(_succeed, done, result)

        self._must(run)
        return await done

    @property
    def stalled_seconds(self) -> float:
        """Seconds without progress while there is work; 0 when idle."""
        since = self._busy_since
        return 0.0 if since is None else max(0.0, self._clock() - since)

    @property
    def healthy(self) -> bool:
        """Whether the thread lives and steps succeed."""
        return not self.crashed and self._failed_steps < FAILING_STEPS

    # --- engine thread ----------------------------------------------------------------------

    def _command(self, command: Callable[[], None]) -> bool:
        with self._wake:
            if self._stopping:
                return False
            self._commands.append(command)
            if self._busy_since is None:
                self._busy_since = self._clock()
            self._wake.notify()
            return True

    def _must(self, command: Callable[[], None]) -> None:
        if not self._command(command):
            raise _stopped()

    def _main(self) -> None:
        try:
            while self._wait_for_work():
                self._turn()
        except Exception:  # noqa: BLE001  a thread that dies silently would hang every request
            _log.exception("the decode engine failed outside a step; the worker is unhealthy")
            self.crashed = True
        with self._wake:
            self._stopping = True
        for command in self._commands:
            command()
        for row in self._scheduler.rows():
            self._end(row, FinishReason.ERROR, error=_stopped())
        self._flush(None)

    def _wait_for_work(self) -> bool:
        with self._wake:
            self.num_waiting = self._scheduler.num_waiting
            self.num_running = len(self._scheduler) - self.num_waiting
            while not (self._stopping or self._commands or self._scheduler.next_batch()):
                self._busy_since = None
                deadline = self._scheduler.next_deadline()
                if deadline is not None and deadline <= self._clock():
                    break
                self._wake.wait(None if deadline is None else deadline - self._clock())
            self._busy_since = self._clock()
            return not self._stopping

    def _turn(self) -> None:
        with self._wake:
            commands, self._commands = self._commands, []
        for command in commands:
            command()
        for row in self._scheduler.overdue(self._clock()):
            error = DeadlineError("the request's time was over before its answer was; allow more")
            self._end(row, FinishReason.ERROR, error=error)
        batch = self._scheduler.next_batch()
        self._flush(self._step(batch) if batch else None)

    def _step(self, batch: list[Row]) -> StepReport:
        started = self._clock()
        preempted = self._preempted(batch)
        for row in batch:
            if row.started_at is None:
                row.started_at = started
        try:
            tokens = self._runner.step([row.sequence for row in batch])
        except Exception as error:  # noqa: BLE001  one bad row must not end the others
            _log.exception("a decode step failed; its rows are stepped alone", rows=len(batch))
            produced = self._step_alone(batch, error)
        else:
            self._failed_steps = 0
            produced = list(zip(batch, tokens, strict=True))
        now = self._clock()
        for row, token in produced:
            self._take(row, token, now)
        return StepReport(
            rows=len(batch), seconds=now - started, tokens=len(produced), preempted=preempted
        )

    def _preempted(self, batch: list[Row]) -> int:
        before, self._last_batch = self._last_batch, frozenset(batch)
        return sum(row in self._scheduler for row in before - self._last_batch)

    def _step_alone(self, batch: list[Row], error: Exception) -> list[tuple[Row, SampledToken]]:
        """Finds the rows that cannot be stepped and ends them; the others lose nothing."""
        if not isinstance(error, InvalidRequestError):
            # What a request brought about itself says nothing of the engine.
            self._failed_steps += 1
        if len(batch) == 1:
            self._end(batch[0], FinishReason.ERROR, error=_step_error(error))
            return []
        produced = []
        for row in batch:
            try:
                (token,) = self._runner.step([row.sequence])
            except Exception as alone:  # noqa: BLE001  as above
                _log.exception(
                    "a row failed alone and ends", handoff_id=row.sequence.key.handoff_id
                )
                self._end(row, FinishReason.ERROR, error=_step_error(alone))
            else:
                produced.append((row, token))
        return produced

    def _take(self, row: Row, token: SampledToken, now: float) -> None:
        row.generated += 1
        if row.first_token_at is None:
            row.first_token_at = now
        row.stream.count(1)
        self._events.append(_Event(row, [token], None))
        verdict = row.tracker.observe(token.token_id)
        if verdict is not None:
            self._end(row, verdict.reason, verdict=verdict)

    def _end(
        self,
        row: Row,
        reason: FinishReason,
        *,
        verdict: StopVerdict | None = None,
        error: TandemError | None = None,
    ) -> None:
        if not self._scheduler.remove(row):
            return
        ending = Ending(
            reason=reason,
            stop_match=verdict.match if verdict is not None else "",
            generated_tokens=row.generated,
            attended=row.sequence.attended,
            dense=row.sequence.dense,
            refreshes=row.sequence.refreshes,
            phases=self._phases(row),
            error=error,
            trace=row.sequence.record.trace() if row.sequence.record is not None else None,
        )
        self._events.append(_Event(row, [], ending))

    def _phases(self, row: Row) -> tuple[tuple[str, float], ...]:
        now = self._clock()
        started = row.started_at if row.started_at is not None else now
        phases = [("decode_queue", started - row.submitted_at)]
        if row.first_token_at is not None:
            phases.append(("first_decode", row.first_token_at - started))
            phases.append(("decode", now - row.first_token_at))
        return tuple(phases)

    def _flush(self, report: StepReport | None) -> None:
        events, self._events = self._events, []
        if events or report is not None:
            self._loop.call_soon_threadsafe(self._deliver, events, report)

    # --- event loop, called back ------------------------------------------------------------

    def _deliver(self, events: list[_Event], report: StepReport | None) -> None:
        for event in events:
            event.row.stream.deliver(event.tokens, event.ending)
            if event.ending is not None:
                event.row.on_end(event.ending)
        if report is not None:
            self._on_step(report)


def _stopped() -> UnavailableError:
    return UnavailableError(
        "the decode engine has stopped: the worker shuts down or failed; use another",
        code="draining",
    )


def _step_error(error: Exception) -> TandemError:
    if isinstance(error, TandemError):
        return error
    return InternalError(
        f"a decode step failed ({type(error).__name__}): a defect or exhausted memory; "
        "see the worker's log"
    )


def _succeed(done: asyncio.Future[T], result: T) -> None:
    if not done.done():
        done.set_result(result)


def _fail(done: asyncio.Future[T], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)
