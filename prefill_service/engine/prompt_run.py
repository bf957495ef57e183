"""A prompt from its turn to its last event, and the second delivery of one that was computed.

Both leave nothing behind however they end: no reservation, no slab, no compute.
"""

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import replace

from prefill_service.engine.batcher import Turn
from prefill_service.engine.compute import Computed
from prefill_service.engine.courier import Arrived, Courier
from prefill_service.engine.handoff_notes import HandoffNotes
from prefill_service.engine.held import HeldKv
from prefill_service.engine.job import PrefillJob, Sealed
from prefill_service.engine.parcel import Parcel
from prefill_service.engine.plan import PromptPlan
from prefill_service.engine.services import Services
from shared.errors import TandemError
from shared.types.handoff import HandoffStateMachine
from shared.types.trace import PromptTrace


class PromptRun:
    """One prompt's turn.

    Args:
        turn: its place in a pass; left as soon as it was computed, or will not be.
        services: what to work with.
    """

    def __init__(self, turn: Turn, *, services: Services) -> None:
        self._job = turn.job
        self._turn = turn
        self._services = services
        self._computed: Computed | None = None

    async def run(self) -> Sealed:
        """Reserves, computes and delivers.

        Raises:
            TandemError: why it failed or was stopped.
        """
        job, held = self._job, self._services.held
        try:
            job.raise_if_stopped()
            plan = self._services.planner(job.request)
            nbytes = plan.slab.total_bytes
            if not held.admit_now(nbytes):
                await job.unless_stopped(held.admit(nbytes))
            try:
                return await self._admitted(plan)
            finally:
                held.discharge(nbytes)
        finally:
            self._turn.leave()

    async def _admitted(self, plan: PromptPlan) -> Sealed:
        job, services = self._job, self._services
        slab = await job.unless_stopped(services.slabs.make(plan))
        parcel = Parcel(job.request, plan=plan, slab=slab, model=services.model)
        courier = _courier(job, parcel, services=services)
        machine = HandoffStateMachine(job.key)
        try:
            if not services.links.grants.likely(job.request.targets[0]):
                await job.unless_stopped(courier.reserve())
            arrived = await self._compute_and_deliver(parcel, courier)
            machine = arrived.delivery.machine
            sealed = _sealed(
                parcel, arrived, services=services, notes=job.notes, computed=self._computed
            )
            return await self._traced(sealed, parcel)
        finally:
            await courier.abort("ended")
            again = parcel.complete and not job.stopping()
            if not (again and services.held.hold(HeldKv(parcel, machine))):
                slab.close()

    async def _traced(self, sealed: Sealed, parcel: Parcel) -> Sealed:
        """With what was kept, when the request asked: said last, so no handoff waits for it."""
        notes, computed = self._job.notes, self._computed
        if notes is None or computed is None or computed.trace is None:
            return sealed
        handoff = notes.adopted()
        parcel.trace = await asyncio.to_thread(computed.trace)
        return replace(sealed, trace=replace(parcel.trace, handoff=handoff))

    async def _compute_and_deliver(self, parcel: Parcel, courier: Courier) -> Arrived:
        """Runs both side by side; whichever fails first ends the other."""
        # Into the next pass before anything else is begun: the device works while the rest is done.
        computed = self._turn.compute(parcel.plan, parcel.slab)
        compute = asyncio.ensure_future(self._compute(parcel, computed))
        try:
            return await self._job.unless_stopped(self._deliver(courier))
        except TandemError as error:
            if not parcel.complete:
                self._job.stop(error)
            raise
        finally:
            await compute

    async def _deliver(self, courier: Courier) -> Arrived:
        while (target := courier.room_at) is None:
            await courier.reserve()
        self._job.has_room(target)
        return await courier.deliver()

    async def _compute(self, parcel: Parcel, computed: Awaitable[Computed]) -> None:
        try:
            done = self._computed = await computed
        except TandemError as error:
            self._job.stop(error)
            return
        finally:
            self._turn.leave()
        self._services.recorder.computed(done)
        parcel.finish(done.first_tokens, plan=done.plan, ended_at=done.ended_at)


async def resend(job: PrefillJob, *, held: HeldKv, services: Services) -> Sealed:
    """Delivers held KV again, under the key of `job` and to its targets.

    Raises:
        TandemError: the delivery failed or was stopped.
    """
    async with services.held.reading(held):
        courier = _courier(job, held.parcel, services=services)
        try:
            await job.unless_stopped(courier.reserve())
            began = time.monotonic()
            arrived = await job.unless_stopped(courier.deliver())
        finally:
            await courier.abort("ended")
        services.held.delivered(held, arrived.delivery.machine)
    return _sealed(held.parcel, arrived, services=services, notes=job.notes, began=began)


def _courier(job: PrefillJob, parcel: Parcel, *, services: Services) -> Courier:
    return Courier(
        key=job.key,
        parcel=parcel,
        targets=job.request.targets,
        links=services.links,
        policy=services.policy,
        notes=job.notes,
    )


def _sealed(
    parcel: Parcel,
    arrived: Arrived,
    *,
    services: Services,
    notes: HandoffNotes | None,
    computed: Computed | None = None,
    began: float | None = None,
) -> Sealed:
    phases: list[tuple[str, float]] = []
    if computed is not None:
        phases += [("prefill", computed.prefill_seconds), ("select", computed.select_seconds)]
    # Only what came after the prompt was computed: the rest of the transfer ran beside it.
    since = parcel.completed_at if began is None else began
    phases.append(("transfer", time.monotonic() - since))
    return Sealed(
        target=arrived.delivery.target,
        kv_bytes=arrived.stats.bytes,
        transport=arrived.delivery.transport,
        kept_tokens=parcel.plan.summary.kept_tokens,
        phases=tuple(phases),
        lease_s=services.held.lease_s,
        trace=_trace(parcel, notes),
    )


def _trace(parcel: Parcel, notes: HandoffNotes | None) -> PromptTrace | None:
    """What was kept and when it moved, when the request asked."""
    if parcel.trace is None or notes is None:
        return parcel.trace
    return replace(parcel.trace, handoff=notes.adopted())
