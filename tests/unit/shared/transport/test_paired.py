"""A pair's transports before a real server: tried, passed over, tried again, and all of it told."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
import structlog
from prometheus_client import CollectorRegistry

from shared.errors import StaleWriteError, TransportError, UnavailableError
from shared.telemetry.metrics import PairMetrics
from shared.transport import ranking
from shared.transport.base import Grant
from shared.transport.canary import DAMAGED, FAILED, TOO_SLOW
from shared.transport.choice import RejectedTransport
from shared.transport.hello import Peer
from shared.transport.paired import NO_TRANSPORT, OwnSide, PairedTransports
from shared.transport.probe_calls import GrpcProbeCalls
from shared.transport.probe_ground import PROBE_BYTES, PROBE_ROOMS
from shared.types.topology import Topology
from tests.support.decode_peer import DecodePeer
from tests.support.faulty_transport import Fault, FaultyTransport
from tests.support.stepped_clock import SteppedClock
from tests.support.transfer_parts import INCARNATION, MODEL, Receiver, receiver
from tests.support.waiting import until

HERE = Topology(host="h", pid_namespace="1")
BOTH = ("nixl", "grpc")


@dataclass
class Rig:
    """Two transports over one real path, each with a switch; the first one plays NIXL."""

    pairs: PairedTransports
    clock: SteppedClock
    registry: CollectorRegistry
    nixl: FaultyTransport
    grpc: FaultyTransport
    end: Receiver

    def grant(self, *transports: str, incarnation: str = INCARNATION) -> Grant:
        return Grant(slot=0, generation=1, transports=transports or BOTH, incarnation=incarnation)

    async def choose(self, *transports: str) -> str:
        chosen = await self.pairs.choose(
            worker_id="d1", address=self.end.address, grant=self.grant(*transports)
        )
        return chosen.name

    def lost(self, name: str, error: Exception | None = None) -> None:
        self.pairs.lost(
            address=self.end.address,
            grant=self.grant(),
            transport=name,
            error=error or TransportError("the lane died"),  # type: ignore[arg-type]
        )

    def delivered(self, name: str) -> None:
        self.pairs.delivered(address=self.end.address, grant=self.grant(), transport=name)

    def rejected(self) -> dict[str, str]:
        return {s.transport: s.rejected for s in self.pairs.states() if s.rejected}

    def value(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"tandem_transport_{name}", labels) or 0.0


@asynccontextmanager
async def rig(
    *,
    peer: Topology = HERE,
    own: Sequence[str] = BOTH,
    rejected: tuple[RejectedTransport, ...] = (),
    canary_s: float = 20.0,
) -> AsyncIterator[Rig]:
    async with receiver("grpc", place=peer) as end:
        nixl = FaultyTransport(end.transport, "nixl")
        grpc = FaultyTransport(end.transport, "grpc")
        clock, registry = SteppedClock(), CollectorRegistry()
        pairs = PairedTransports(
            OwnSide(
                transports={t.name: t for t in (nixl, grpc) if t.name in own},
                rejected=rejected,
                place=HERE,
            ),
            calls=GrpcProbeCalls(Peer(model=MODEL, incarnation="sender-1", place=HERE)),
            metrics=PairMetrics(registry),
            canary_s=canary_s,
            clock=clock,
        )
        try:
            yield Rig(pairs, clock, registry, nixl, grpc, end)
        finally:
            await pairs.close()
            assert not pairs._flights
            assert end.probes is not None
            assert end.probes.num_open == 0


async def test_the_first_handoff_waits_for_one_canary_and_the_next_for_none() -> None:
    async with rig() as r:
        chosen = await asyncio.gather(*(r.choose() for _ in range(5)))
        assert set(chosen) == {"nixl"}
        assert await r.choose() == "nixl"
        assert (r.nixl.made, r.grpc.made) == (1, 0)
        states = {state.transport: state for state in r.pairs.states()}
        assert states["nixl"].gbps > 0
        assert (states["grpc"].gbps, r.rejected()) == (0.0, {})
        assert r.value("canaries_total", transport="nixl", outcome="arrived") == 1
        assert r.value("canary_gbps_count", transport="nixl") == 1


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (Fault.REFUSE, FAILED),
        (Fault.BREAK, FAILED),
        (Fault.DROP, DAMAGED),
        (Fault.CORRUPT, DAMAGED),
        (Fault.STALL, TOO_SLOW),
    ],
)
async def test_a_canary_that_fails_makes_the_next_transport_serve(fault: Fault, code: str) -> None:
    async with rig(canary_s=0.5 if fault is Fault.STALL else 20.0) as r:
        r.nixl.fault = fault
        with structlog.testing.capture_logs() as logs:
            assert await r.choose() == "grpc"
        assert r.rejected() == {"nixl": code}
        assert r.value("canaries_total", transport="nixl", outcome=code) == 1
        assert r.value("fallbacks_total", transport="nixl", reason=code) == 1
        r.pairs.refresh_metrics()
        assert r.value("rejected_pairs", transport="nixl", reason=code) == 1
        [warned] = [line for line in logs if line["log_level"] == "warning"]
        assert (warned["transport"], warned["code"], warned["cooldown_s"]) == ("nixl", code, 30.0)
        [told] = [line for line in logs if line["event"] == "a pair has its transport"]
        assert told["transport"] == "grpc"
        assert told["gbps"] > 0
        assert told["passed_over"][0].startswith("nixl: ")


async def test_what_failed_is_tried_again_behind_a_handoff_when_its_time_is_over() -> None:
    async with rig() as r:
        r.nixl.fault = Fault.CORRUPT
        for cooldown in (30.0, 60.0, 120.0, 240.0, 300.0, 300.0):
            assert await r.choose() == "grpc"  # the handoff does not wait for the canary
            await until(lambda: not r.pairs._flights)
            made = r.nixl.made
            r.clock.now += cooldown - 0.5
            assert await r.choose() == "grpc"
            assert (r.nixl.made, not r.pairs._flights) == (made, True)
            r.clock.now += 0.5
        r.nixl.fault = Fault.NONE
        assert await r.choose() == "grpc"
        await until(lambda: not r.pairs._flights)
        assert await r.choose() == "nixl"
        assert r.rejected() == {}
        r.pairs.refresh_metrics()
        assert r.value("rejected_pairs", transport="nixl", reason=DAMAGED) == 0


async def test_a_lane_that_dies_in_a_handoff_is_passed_over_by_the_next() -> None:
    async with rig() as r:
        assert await r.choose() == "nixl"
        r.lost("nixl")
        assert await r.choose() == "grpc"
        assert r.rejected() == {"nixl": ranking.LANE_FAILED}
        assert r.value("fallbacks_total", transport="nixl", reason=ranking.LANE_FAILED) == 1
        r.clock.now += 30
        assert await r.choose() == "grpc"
        await until(lambda: not r.pairs._flights)
        assert await r.choose() == "nixl"
        r.lost("nixl")  # no handoff arrived meanwhile, so that the cooldown grows
        r.clock.now += 59
        assert await r.choose() == "grpc"
        r.clock.now += 1
        await r.choose()
        await until(lambda: not r.pairs._flights)
        r.delivered(await r.choose())
        r.lost("nixl")
        r.clock.now += 30
        await r.choose()
        await until(lambda: not r.pairs._flights)
        assert await r.choose() == "nixl"


async def test_a_transport_is_not_to_blame_for_a_lease_that_ended() -> None:
    async with rig() as r:
        assert await r.choose() == "nixl"
        r.lost("nixl", StaleWriteError("the lease ended"))
        r.lost("nixl", UnavailableError("it drains"))
        assert await r.choose() == "nixl"


async def test_the_only_transport_is_proven_anew_rather_than_given_up() -> None:
    async with rig(own=("grpc",)) as r:
        for _ in range(3):
            assert await r.choose() == "grpc"
            r.lost("grpc")
        assert r.grpc.made == 3
        r.grpc.fault = Fault.BREAK
        with pytest.raises(TransportError) as raised:
            await r.choose()
        assert raised.value.error_code == NO_TRANSPORT
        assert "grpc: canary_failed" in raised.value.message
        assert r.end.address not in raised.value.message
        made = r.grpc.made
        with pytest.raises(TransportError, match="grpc: canary_failed"):
            await r.choose()
        assert r.grpc.made == made + 1, "every handoff tries once more, and once only"
        r.grpc.fault = Fault.NONE
        assert await r.choose() == "grpc"
        r.grpc.fault = Fault.NONE
        r.clock.now += 300
        assert await r.choose() == "grpc"


async def test_two_pid_namespaces_of_one_machine_share_no_memory() -> None:
    async with rig(peer=replace(HERE, pid_namespace="2")) as r:
        assert await r.choose() == "grpc"
        assert r.nixl.made == 0
        [apart] = [state for state in r.pairs.states() if state.rejected]
        assert (apart.transport, apart.rejected) == ("nixl", ranking.PID_NAMESPACE)
        assert "1 here, 2 there" in apart.reason
        [used] = [state for state in r.pairs.states() if not state.rejected]
        assert used.gbps > 0
    async with rig(peer=replace(HERE, pid_namespace="2"), own=("nixl",)) as r:
        with pytest.raises(TransportError, match="nixl: pid_namespace"):
            await r.choose()
    async with rig(peer=Topology(host="far", pid_namespace="2")) as r:
        assert await r.choose() == "nixl"


async def test_what_a_side_lacks_is_named() -> None:
    absent = RejectedTransport(name="nixl", code="not_installed", reason="no package")
    async with rig(own=("grpc",), rejected=(absent,)) as r:
        assert await r.choose() == "grpc"
        assert r.rejected() == {"nixl": "not_installed"}
        assert r.value("fallbacks_total", transport="nixl", reason="not_installed") == 1
    async with rig() as r:
        assert await r.choose("grpc") == "grpc"
        assert r.rejected() == {"nixl": ranking.NOT_THERE}
        assert r.value("fallbacks_total", transport="nixl", reason=ranking.NOT_THERE) == 1
    async with rig(own=("nixl",)) as r:
        with pytest.raises(TransportError, match="grpc: not_here, nixl: not_there"):
            await r.choose("grpc")


async def test_a_process_that_restarted_has_a_clean_record() -> None:
    async with rig() as r:
        r.nixl.fault = Fault.CORRUPT
        assert await r.choose() == "grpc"
        other = r.grant(incarnation="receiver-0")
        with pytest.raises(TransportError, match="restarted"):
            await r.pairs.choose(worker_id="d1", address=r.end.address, grant=other)
        r.pairs.lost(
            address=r.end.address, grant=other, transport="grpc", error=TransportError("late")
        )
        r.pairs.delivered(address=r.end.address, grant=other, transport="grpc")
        assert r.rejected() == {"nixl": DAMAGED}


async def test_full_rooms_hold_no_handoff_up() -> None:
    async with rig() as r:
        calls = r.pairs._calls
        held = [await calls.open(r.end.address, PROBE_BYTES) for _ in range(PROBE_ROOMS)]
        assert await r.choose() == "nixl"
        assert r.value("canaries_total", transport="nixl", outcome="no_room") == 1
        for grant in held:
            assert grant is not None
            await calls.close(r.end.address, grant)
        assert await r.choose() == "nixl"
        assert r.value("canaries_total", transport="nixl", outcome="arrived") == 1


async def test_closing_ends_canaries_that_fly() -> None:
    async with rig() as r:
        r.nixl.fault = Fault.STALL
        waiting = asyncio.create_task(r.choose())
        await until(lambda: bool(r.nixl.open_senders))
        await r.pairs.close()
        await asyncio.gather(waiting, return_exceptions=True)
        assert not r.nixl.open_senders


async def test_a_worker_that_knows_no_canaries_is_believed() -> None:
    peer = DecodePeer(MODEL)
    await peer.start()
    try:
        async with rig(own=("grpc",)) as r:
            grant = r.grant("grpc", incarnation=peer.incarnation)
            for _ in range(2):
                chosen = await r.pairs.choose(worker_id="d0", address=peer.address, grant=grant)
                assert chosen.name == "grpc"
            assert r.grpc.made == 0
            assert r.value("canaries_total", transport="grpc", outcome="not_known") == 1
    finally:
        await peer.stop()
