"""From a landed slab to pages: wait for the seal, verify, copy, adopt.

A manifest that does not hold is refused and its handoff dropped; nothing is adopted in part.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from decode_service.engine.adoption import Adoption
from decode_service.engine.branches import branch_prompt, copy_tails
from decode_service.engine.engine import DecodeEngine
from decode_service.engine.grant_check import check_grant
from decode_service.engine.handoffs import AdoptedKv, Reservation, stale
from decode_service.engine.kv_cache import PagedKvCache
from decode_service.engine.reservations import OPEN_TO_WRITES, ReservationTable
from decode_service.engine.sequence import PromptKv
from decode_service.engine.verify import ManifestVerifier
from shared.kv.memory import MemoryPart
from shared.kv.slab import Slab
from shared.types.handoff import HandoffState
from shared.types.kv_manifest import KvManifest

_COMMITTED = frozenset({HandoffState.COMMITTED})


class Intake:
    """Serves commits.

    Args:
        table: reservations.
        slab: where pushes landed.
        cache: pages.
        engine: copies between its steps what several answers share.
        verifier: checks the manifests.
        adoption: checks what landed and brings it into pages.
        clock: monotonic seconds.
        commit_wait_s: longest wait for the end of the push stream.
    """

    def __init__(  # noqa: PLR0913  it joins the six parts of a handoff's end
        self,
        table: ReservationTable,
        *,
        slab: Slab,
        cache: PagedKvCache,
        engine: DecodeEngine,
        verifier: ManifestVerifier,
        adoption: Adoption,
        clock: Callable[[], float],
        commit_wait_s: float,
    ) -> None:
        self._table = table
        self._slab = slab
        self._cache = cache
        self._engine = engine
        self._verifier = verifier
        self._adoption = adoption
        self._clock = clock
        self._commit_wait_s = commit_wait_s
        self._tasks: set[asyncio.Task[AdoptedKv]] = set()

    @property
    def num_tasks(self) -> int:
        """Commits in progress."""
        return len(self._tasks)

    def warm_up(self) -> None:
        """Does first-time work before the worker serves; blocks."""
        self._adoption.warm_up()

    def close(self) -> None:
        """Lets its threads end, once no call can come any more."""
        self._adoption.close()

    def expect(self, granted: Reservation) -> None:
        """Prepares for what a grant will bring; again changes nothing."""
        if granted.arrival is None and granted.state in OPEN_TO_WRITES:
            granted.arrival = self._adoption.expect(
                granted.spec, landed=self._slab_of(granted), pages=granted.pages
            )

    async def commit(
        self,
        manifest: KvManifest,
        *,
        slot: int,
        generation: int,
        prompt_ids: tuple[int, ...],
        token: bytes,
    ) -> Reservation:
        """Verifies and adopts; returns when the pages hold the prompt. Committing twice is fine.

        Raises:
            ManifestError: what landed is not what was promised; the handoff is dropped.
            StaleWriteError: unknown, over, not sealed in time, or another slot, generation,
                or token.
        """
        key = manifest.handoff
        granted = self._table.find(key)
        check_grant(
            granted,
            slot=slot,
            generation=generation,
            token=token,
            counters=self._table.counters,
        )
        # One that was said ahead of its sums waits for the computation: its lease is the bound.
        wait_s = None if manifest.sums_follow else self._commit_wait_s
        await granted.leave(OPEN_TO_WRITES, timeout_s=wait_s)
        if granted.state in OPEN_TO_WRITES:
            self._table.abort(key)
            raise stale(key, "was committed, but its push did not end")
        if granted.state is HandoffState.SEALED:
            self._table.begin_commit(granted)
            task = asyncio.create_task(self._adopt(granted, manifest, prompt_ids))
            self._tasks.add(task)
            task.add_done_callback(self._finished)
            # A caller that leaves must not stop a copy half-way: it runs on and is then reaped.
            await asyncio.shield(task)
            return granted
        await granted.leave(_COMMITTED, timeout_s=self._commit_wait_s)
        if granted.state is not HandoffState.ADOPTED:
            raise stale(key, f"is {granted.state.value}")
        return granted

    def _finished(self, task: asyncio.Task[AdoptedKv]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen, even when its caller has left

    async def _adopt(
        self, granted: Reservation, manifest: KvManifest, prompt_ids: tuple[int, ...]
    ) -> AdoptedKv:
        started = self._clock()
        adopted = None
        try:
            manifest = self._verifier.with_sums(manifest, granted.sums)
            self._verifier.check_promises(manifest, spec=granted.spec, prompt_ids=prompt_ids)
            surplus_tokens = granted.spec.kept_tokens - manifest.pruning.slots
            if surplus_tokens and granted.arrival is not None:
                # It foresaw more: nothing may write to the pages that go back.
                await granted.arrival.give_way()
                granted.arrival = None
            granted.pages = self._cache.shrink(granted.pages, surplus_tokens=surplus_tokens)
            layouts = await self._adoption.adopt(
                manifest,
                landed=self._slab_of(granted),
                pages=granted.pages,
                arrival=granted.arrival,
            )
            prompt = PromptKv(
                pages=granted.pages,
                layouts=tuple(layout.on(self._cache.device) for layout in layouts),
                layer_layouts=manifest.layer_layouts,
                whole_layers=self._cache.whole_layers,
                prompt_tokens=manifest.prompt_tokens,
            )
            adopted = AdoptedKv(
                manifest=manifest,
                branches=(prompt, *await self._branch(prompt, granted)),
                prompt_ids=prompt_ids,
                seconds=self._clock() - started,
            )
        finally:
            granted.adopted = adopted
            self._table.end_commit(granted)
        return adopted

    def _slab_of(self, granted: Reservation) -> MemoryPart:
        lease = granted.lease
        return self._slab.locate(lease.slot, lease.generation, 0, lease.nbytes)

    async def _branch(self, prompt: PromptKv, granted: Reservation) -> list[PromptKv]:
        own = granted.own_pages
        others = [branch_prompt(self._cache, prompt, own[branch]) for branch in sorted(own)]
        if others:
            copy = partial(copy_tails, self._cache, prompt, others)
            await self._engine.between_steps(copy)
        return others
