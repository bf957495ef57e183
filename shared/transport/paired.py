"""The transports of a prefill worker, chosen anew for every handoff by what each pair has shown.

On first use a canary goes ahead of the handoff; a transport that fails in it, or in a handoff, is
passed over for a while and tried again by a canary in the background. All methods belong to one
loop.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from shared.errors import OverloadedError, TandemError, TransportError
from shared.telemetry.metrics import PairMetrics
from shared.transport.base import Grant, KvTransport
from shared.transport.canary import DEFAULT_SECONDS, ProbeCalls, fly_canary
from shared.transport.choice import RejectedTransport
from shared.transport.lane_records import CooldownSettings, LaneRecords, PairRecord
from shared.transport.ranking import (
    LaneRecord,
    LaneStatus,
    PairFacts,
    Ranking,
    rank_transports,
)
from shared.types.pair_state import MAX_PAIR_STATES, PairState
from shared.types.topology import Topology

NO_TRANSPORT = "no_transport"
"""Code of the refusal where a pair can use no transport."""

_log = structlog.get_logger(__name__)


class PeerCalls(ProbeCalls, Protocol):
    """What is asked of decode workers beside handoffs."""

    async def meet(self, address: str, grant: Grant) -> Topology:
        """Greets the worker that gave a grant; returns its place."""

    async def shut(self) -> None:
        """Drops all connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSide:
    """What this worker brings to every pair."""

    transports: Mapping[str, KvTransport]
    """What works here, by name."""
    rejected: tuple[RejectedTransport, ...] = ()
    """What does not."""
    place: Topology
    """Where its memory is."""


class PairedTransports:
    """Chooses, tries, remembers.

    Args:
        own: this side.
        calls: to decode workers.
        metrics: where to count.
        cooldown: after failures.
        canary_s: longest flight of a canary, in seconds.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        own: OwnSide,
        *,
        calls: PeerCalls,
        metrics: PairMetrics,
        cooldown: CooldownSettings | None = None,
        canary_s: float = DEFAULT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own = own
        self._calls = calls
        self._metrics = metrics
        self._canary_s = canary_s
        self._clock = clock
        self._records = LaneRecords(cooldown=cooldown or CooldownSettings(), clock=clock)
        self._wanted = tuple(dict.fromkeys((*(r.name for r in own.rejected), *own.transports)))
        self._flights: dict[tuple[str, str, str], asyncio.Task[bool]] = {}

    async def choose(self, *, worker_id: str, address: str, grant: Grant) -> KvTransport:
        """The transport of the next handoff to a decode worker.

        Raises:
            TransportError: none may be used; the text names each with its reason, as one word.
            TandemError: the worker cannot be asked.
        """
        pair = await self._meet(worker_id, address, grant)
        failed: set[str] = set()
        while True:
            ranking = self._rank(pair)
            left = [each for each in ranking.candidates if each.name not in failed]
            if not left:
                raise self._refused(pair, ranking)
            first = left[0]
            if first.needs_canary and not await asyncio.shield(self._flight(pair, first.name)):
                failed.add(first.name)
                continue
            self._retry_in_background(pair, ranking, used=first.name)
            self._note_choice(pair, ranking, used=first.name)
            return self._own.transports[first.name]

    def lost(self, *, address: str, grant: Grant, transport: str, error: TandemError) -> None:
        """A handoff broke off; what the transport is not to blame for is left out."""
        pair = self._records.find(address, incarnation=grant.incarnation)
        if pair is None or not isinstance(error, TransportError):
            return
        seconds = self._records.lost(pair, transport, error)
        self._log_rejection(pair, transport, error, seconds)

    def delivered(self, *, address: str, grant: Grant, transport: str) -> None:
        """A handoff arrived."""
        pair = self._records.find(address, incarnation=grant.incarnation)
        if pair is not None:
            self._records.delivered(pair, transport)

    def states(self) -> tuple[PairState, ...]:
        """Every transport of every pair, the latest pairs first; for health."""
        found: list[PairState] = []
        for pair in reversed(self._records.all()):
            ranking = self._rank(pair)
            rejected = {each.name: each for each in ranking.barred}
            names = list(dict.fromkeys((*(c.name for c in ranking.candidates), *rejected)))
            for name in names:
                lane, why = pair.lanes.get(name), rejected.get(name)
                found.append(
                    PairState(
                        worker_id=pair.worker_id,
                        transport=name,
                        gbps=round(lane.gbps, 3) if lane is not None else 0.0,
                        rejected=why.code if why is not None else "",
                        reason=why.reason if why is not None else "",
                    )
                )
        return tuple(found[:MAX_PAIR_STATES])

    def refresh_metrics(self) -> None:
        """Sets the gauge of rejected transports, which change as time goes by."""
        gauge = self._metrics.rejected_pairs
        gauge.clear()
        for pair in self._records.all():
            for each in self._rank(pair).barred:
                gauge.labels(each.name, each.code).inc()

    async def close(self) -> None:
        """Ends canaries that fly, and drops connections but those of the transports."""
        flights = list(self._flights.values())
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)
        await self._calls.shut()

    async def _meet(self, worker_id: str, address: str, grant: Grant) -> PairRecord:
        known = self._records.find(address, incarnation=grant.incarnation)
        if known is None:
            place = await self._calls.meet(address, grant)
            # Another handoff may have met it meanwhile.
            known = self._records.find(address, incarnation=grant.incarnation) or self._records.add(
                PairRecord(
                    worker_id=worker_id,
                    address=address,
                    incarnation=grant.incarnation,
                    place=place,
                )
            )
        known.granted = grant.transports
        return known

    def _rank(self, pair: PairRecord) -> Ranking:
        facts = PairFacts(
            own=tuple(self._own.transports),
            granted=pair.granted,
            absent=self._own.rejected,
            place=self._own.place,
            peer=pair.place,
        )
        return rank_transports(facts, pair.lanes, now=self._clock())

    def _flight(self, pair: PairRecord, name: str) -> asyncio.Task[bool]:
        """The canary that flies there, or a new one: handoffs that start together share it."""
        key = (pair.address, pair.incarnation, name)
        flight = self._flights.get(key)
        if flight is None:
            flight = asyncio.create_task(self._try(pair, name), name=f"canary-{name}")
            self._flights[key] = flight
            flight.add_done_callback(lambda done: self._landed(key, done))
        return flight

    def _landed(self, key: tuple[str, str, str], flight: asyncio.Task[bool]) -> None:
        del self._flights[key]
        if not flight.cancelled() and (error := flight.exception()) is not None:
            # Whoever waits for it gets it, too; in the background nobody does.
            _log.info("a canary could not start", address=key[0], error=str(error))

    async def _try(self, pair: PairRecord, name: str) -> bool:
        """Flies a canary; returns whether the transport may be used."""
        try:
            flight = await fly_canary(
                self._own.transports[name],
                address=pair.address,
                calls=self._calls,
                longest_s=self._canary_s,
            )
        except OverloadedError:
            self._metrics.canaries.labels(name, "no_room").inc()
            if pair.lanes.get(name, LaneRecord()).status is LaneStatus.REJECTED:
                raise
            return True  # nothing speaks against it, and the next handoff asks again
        except TransportError as error:
            self._metrics.canaries.labels(name, error.error_code).inc()
            seconds = self._records.rejected(pair, name, error)
            self._log_rejection(pair, name, error, seconds)
            return False
        if flight is None:
            self._metrics.canaries.labels(name, "not_known").inc()
            self._records.proven(pair, name, gbps=0.0)
            return True
        self._metrics.canaries.labels(name, "arrived").inc()
        self._metrics.canary_gbps.labels(name).observe(flight.gbps)
        self._records.proven(pair, name, gbps=flight.gbps)
        _log.info(
            "a canary arrived",
            transport=name,
            decode_worker=pair.worker_id,
            gbps=round(flight.gbps, 3),
        )
        return True

    def _retry_in_background(self, pair: PairRecord, ranking: Ranking, *, used: str) -> None:
        for name in ranking.due:
            if name != used:
                self._flight(pair, name)

    def _note_choice(self, pair: PairRecord, ranking: Ranking, *, used: str) -> None:
        wanted = tuple(dict.fromkeys((*self._wanted, *pair.granted)))
        better = wanted[: wanted.index(used)]
        passed = [each for each in ranking.rejected if each.name in better]
        for each in passed:
            self._metrics.fallbacks.labels(each.name, each.code).inc()
        if pair.used == used:
            return
        pair.used = used
        lane = pair.lanes.get(used, LaneRecord())
        _log.info(
            "a pair has its transport",
            decode_worker=pair.worker_id,
            transport=used,
            gbps=round(lane.gbps, 3),
            passed_over=[each.text for each in passed],
        )

    def _log_rejection(
        self, pair: PairRecord, name: str, error: TandemError, seconds: float
    ) -> None:
        _log.warning(
            "a transport is not used for a while",
            transport=name,
            decode_worker=pair.worker_id,
            code=error.error_code,
            reason=error.message,
            cooldown_s=seconds,
        )

    def _refused(self, pair: PairRecord, ranking: Ranking) -> TransportError:
        """May reach a client, so that it says no address; the log does."""
        for each in ranking.barred:
            _log.warning(
                "a pair has no transport",
                decode_worker=pair.worker_id,
                transport=each.name,
                code=each.code,
                reason=each.reason,
            )
        why = ", ".join(f"{each.name}: {each.code}" for each in ranking.barred) or "none is set"
        return TransportError(
            f"no transport may be used between the prefill and the decode worker ({why}): see "
            "`pairs` in the gateway's /health for the reasons; enable another transport on both, "
            "or retry later",
            code=NO_TRANSPORT,
        )
