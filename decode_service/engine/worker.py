"""A decode worker without its network edge: reserve, commit, decode, abort, cancel, drain.

Lives on the event loop, owns the reservation table and the running generations, and hands rows to
the engine thread.
"""

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from typing import Protocol

import structlog

from decode_service.engine.admission import Capacity
from decode_service.engine.call import DecodeCall, check_against, check_call
from decode_service.engine.engine import DecodeEngine
from decode_service.engine.handoffs import AdoptedKv, Busy, Reservation, ReserveSpec
from decode_service.engine.intake import Intake
from decode_service.engine.reservations import BEFORE_COMMIT, ReservationTable
from decode_service.engine.rows_to_come import RowsToCome
from decode_service.engine.scheduler import Row
from decode_service.engine.sequence import Sequence
from decode_service.engine.stop import StopTracker, StopVerdict
from decode_service.engine.stream import Ending, TokenStream
from decode_service.sparsity.registry import policy_for
from shared.errors import ConfigError, DeadlineError, InvalidRequestError, TandemError
from shared.grammar.compiler import GrammarCompiler
from shared.grammar.matcher import GrammarMatcher
from shared.tokenizer.tokenizer import Tokenizer
from shared.types.effective import effective_sparsity
from shared.types.handoff import HandoffKey, HandoffState
from shared.types.kv_manifest import KvManifest
from shared.types.methods import SparsityParams
from shared.types.page_summary import PageSummary, summary_of

_BEFORE_ADOPTION = BEFORE_COMMIT | {HandoffState.COMMITTED}

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What the worker needs to know beside its parts."""

    capacity: Capacity
    """Model and sizes."""
    sparsity: SparsityParams
    """Page selection of the profile."""
    vocab_size: int
    """Token ids are below this."""
    commit_wait_s: float
    """Longest wait of a Decode call for its commit."""
    stream_queue_tokens: int
    """Unread tokens at which a row rests."""


class WorkerObserver(Protocol):
    """Hears of what ended, for metrics."""

    def generation_ended(self, ending: Ending) -> None:
        """A generation ended."""

    def commit_ended(self, *, error: TandemError | None) -> None:
        """A commit was adopted, or refused with an error."""


class Generation:
    """One running answer as its reader sees it.

    Args:
        row: its row.
        engine: steps the row.
        pages: what chooses the pages that it reads.
    """

    def __init__(self, row: Row, engine: DecodeEngine, *, pages: PageSummary) -> None:
        self.pages = pages
        self._row = row
        self._engine = engine

    @property
    def stream(self) -> TokenStream:
        """Its tokens."""
        return self._row.stream

    def cancel(self) -> None:
        """Ends it before the next step; twice or after its end is fine."""
        self._engine.cancel(self._row)


class DecodeWorker:
    """All that the decode service does, without gRPC.

    Args:
        table: reservations.
        intake: serves commits.
        engine: steps the rows.
        tokenizer: for stop strings.
        grammars: compiles what answers must conform to.
        settings: sizes and profile.
        observer: hears of endings.
        on_start: told of every answer that joins the batch.
        rows_to_come: told of commits under way.
        clock: monotonic seconds.
    """

    def __init__(  # noqa: PLR0913  it joins the parts that app.py builds
        self,
        *,
        table: ReservationTable,
        intake: Intake,
        engine: DecodeEngine,
        tokenizer: Tokenizer,
        grammars: GrammarCompiler,
        settings: WorkerSettings,
        observer: WorkerObserver,
        on_start: Callable[[Sequence], None],
        rows_to_come: RowsToCome,
        clock: Callable[[], float],
    ) -> None:
        self.table = table
        self.intake = intake
        self.engine = engine
        self._tokenizer = tokenizer
        self._grammars = grammars
        self._settings = settings
        self._observer = observer
        self._on_start = on_start
        self._rows_to_come = rows_to_come
        self._clock = clock
        self._generations: dict[HandoffKey, dict[int, Generation]] = {}

    @property
    def num_generations(self) -> int:
        """Generations that hold pages."""
        return sum(len(branches) for branches in self._generations.values())

    def reserve(self, spec: ReserveSpec) -> Reservation | Busy:
        """Grants room or says busy; see `ReservationTable.reserve` for its errors."""
        answer = self.table.reserve(spec)
        if isinstance(answer, Reservation):
            self.intake.expect(answer)
        return answer

    async def commit(
        self,
        manifest: KvManifest,
        *,
        slot: int,
        generation: int,
        prompt_ids: tuple[int, ...],
        token: bytes,
    ) -> Reservation:
        """Adopts a landed KV cache; see `Intake.commit` for its errors."""
        try:
            with self._rows_to_come.expected(foretold=manifest.sums_follow):
                granted = await self.intake.commit(
                    manifest, slot=slot, generation=generation, prompt_ids=prompt_ids, token=token
                )
        except TandemError as error:
            _log.warning(
                "commit refused", handoff_id=manifest.handoff.handoff_id, why=error.message
            )
            self._observer.commit_ended(error=error)
            raise
        self._observer.commit_ended(error=None)
        return granted

    async def decode(self, call: DecodeCall) -> Generation:
        """Starts a generation; the caller reads its stream to the ending or cancels it.

        Waits a bounded time for KV that is on its way: a gateway calls as soon as it knows who will
        get it. A call that is refused after its
        commit, or given up while it waits, ends its branch, and with the last one the handoff:
        nobody else will ask for it.

        Raises:
            StaleWriteError: unknown, over, not committed in time, or already decoding.
            InvalidRequestError: parameters that do not fit this model or this reservation.
            ConfigError: a page policy whose parameters do not fit this model.
            DeadlineError: no time is left.
        """
        deadline = None if call.deadline_s is None else self._clock() + call.deadline_s
        granted = self.table.find(call.handoff)
        try:
            check_call(call, branches=granted.branches.count, vocab_size=self._settings.vocab_size)
            matcher = await self._matcher(call)
            wait_s = self._settings.commit_wait_s
            if call.deadline_s is not None:
                wait_s = min(wait_s, call.deadline_s)
            await granted.leave(_BEFORE_ADOPTION, timeout_s=wait_s)
            self._check_time(deadline)
            sparsity = effective_sparsity(
                self._settings.sparsity,
                call.options,
                num_layers=self._settings.capacity.identity.num_layers,
            )
            row = self._make_row(
                call, granted, matcher, sparsity, submitted_at=self._clock(), deadline=deadline
            )
        except (asyncio.CancelledError, ConfigError, InvalidRequestError, DeadlineError):
            self.table.give_up(call.handoff, call.branch)
            raise
        return self._start(row, granted, call, pages=summary_of(sparsity))

    def abort(self, key: HandoffKey, *, reason: str) -> bool:
        """Ends a handoff in any state; whether no write is or can be outstanding."""
        _log.info("abort", handoff_id=key.handoff_id, attempt=key.attempt, reason=reason[:200])
        self.cancel_generation(key)
        return self.table.abort(key)

    def cancel(self, key: HandoffKey) -> bool:
        """Ends a generation, or the handoff that would have become one; False when unknown."""
        known = self.cancel_generation(key) or self.table.holds(key)
        self.table.abort(key)
        return known

    def cancel_generation(self, key: HandoffKey) -> bool:
        """Ends all running branches before the next step; False when there is none."""
        running = self._generations.get(key, {})
        for generation in running.values():
            generation.cancel()
        return bool(running)

    def _make_row(
        self,
        call: DecodeCall,
        granted: Reservation,
        matcher: GrammarMatcher | None,
        sparsity: SparsityParams | None,
        *,
        submitted_at: float,
        deadline: float | None,
    ) -> Row:
        """Builds the row of an adopted handoff and claims its pages."""
        settings = self._settings
        sequence = None
        if granted.adopted is not None:
            check_against(call, granted.spec, granted.adopted)
            sequence = self._make_sequence(call, granted.adopted, matcher, sparsity)
        self.table.claim(call.handoff, call.branch)
        adopted = granted.adopted
        assert adopted is not None, "a claimed handoff was adopted"
        assert sequence is not None, "made from what was adopted"
        return Row(
            sequence=sequence,
            tracker=StopTracker(
                call.stop,
                context_left=settings.capacity.max_model_len
                - (adopted.prompt.prompt_tokens - len(call.earlier_tokens)),
                tokenizer=self._tokenizer,
            ),
            stream=TokenStream(limit=settings.stream_queue_tokens, on_room=self.engine.poke),
            on_end=self._when_ended(granted, call.branch),
            deadline=deadline,
            submitted_at=submitted_at,
        )

    async def _matcher(self, call: DecodeCall) -> GrammarMatcher | None:
        """Where the answer stands in its grammar after the tokens that it has."""
        if not call.grammar:
            return None
        matcher = await self._grammars.compile(call.grammar)
        outside = await asyncio.to_thread(matcher.follow, call.shown)
        if outside is not None:
            raise InvalidRequestError(
                f"token {call.shown[outside]}, number {outside + 1} of the answer, is outside the "
                "grammar; send both services the same grammar",
                param="earlier_tokens" if outside < len(call.earlier_tokens) else "first_token",
            )
        return matcher

    def _make_sequence(
        self,
        call: DecodeCall,
        adopted: AdoptedKv,
        matcher: GrammarMatcher | None,
        sparsity: SparsityParams | None,
    ) -> Sequence:
        """Made before the pages are claimed: a policy that refuses the row leaves them alone."""
        settings = self._settings
        identity = settings.capacity.identity
        return Sequence(
            key=call.handoff,
            prompt=adopted.branches[call.branch],
            policy=policy_for(sparsity, num_layers=identity.num_layers),
            num_heads=settings.capacity.num_heads,
            num_kv_heads=identity.num_kv_heads,
            sampling=call.sampling,
            stop=call.stop,
            generated=list(call.shown),
            branch=call.branch,
            draws=adopted.manifest.draws,
            matcher=matcher,
            prompt_ids=adopted.prompt_ids,
            traced=call.options.trace,
        )

    def _start(
        self, row: Row, granted: Reservation, call: DecodeCall, *, pages: PageSummary
    ) -> Generation:
        generation = Generation(row, self.engine, pages=pages)
        self._generations.setdefault(call.handoff, {})[call.branch] = generation
        verdict = row.tracker.observe_all(call.shown)
        if verdict is not None:
            self._end_at_once(row, verdict)
            return generation
        try:
            self.engine.join(row)
        except TandemError:
            self._forget(granted, call.branch)
            raise
        self._on_start(row.sequence)
        return generation

    def _end_at_once(self, row: Row, verdict: StopVerdict) -> None:
        ending = Ending(reason=verdict.reason, stop_match=verdict.match)
        row.stream.deliver([], ending)
        row.on_end(ending)

    def _forget(self, granted: Reservation, branch: int) -> None:
        running = self._generations[granted.key]
        del running[branch]
        if not running:
            del self._generations[granted.key]
        self.table.release(granted, branch)

    def _when_ended(self, granted: Reservation, branch: int) -> Callable[[Ending], None]:
        """What the engine calls, under the request id and trace of the call that began it."""
        context = copy_context()
        return lambda ending: context.run(self._ended, granted, branch, ending)

    def _ended(self, granted: Reservation, branch: int, ending: Ending) -> None:
        self._forget(granted, branch)
        _log.info(
            "answer ended",
            handoff_id=granted.key.handoff_id,
            attempt=granted.key.attempt,
            branch=branch,
            reason=ending.reason.value,
            code=ending.error.error_code if ending.error is not None else "",
            tokens=ending.generated_tokens,
            attended=ending.attended,
            dense=ending.dense,
            seconds={phase: round(seconds, 4) for phase, seconds in ending.phases},
        )
        self._observer.generation_ended(ending)

    def _check_time(self, deadline: float | None) -> None:
        if deadline is not None and deadline <= self._clock():
            raise DeadlineError(
                "the request's time was over before its KV cache was adopted; allow more"
            )
