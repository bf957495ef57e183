"""The ranking of a pair's transports: total, never one that is rejected, and true to its clock."""

from hypothesis import given
from hypothesis import strategies as st

from shared.errors import TransportError
from shared.transport.choice import RejectedTransport
from shared.transport.lane_records import CooldownSettings, LaneRecords, PairRecord
from shared.transport.ranking import (
    LANE_FAILED,
    MEMORY_KIND,
    NOT_HERE,
    NOT_THERE,
    PID_NAMESPACE,
    LaneRecord,
    LaneStatus,
    PairFacts,
    rank_transports,
)
from shared.types.topology import Topology, memory_apart, processes_apart
from tests.support.stepped_clock import SteppedClock

NAMES = ("nixl", "grpc", "pigeon", "smoke")
names = st.lists(st.sampled_from(NAMES), unique=True).map(tuple)
places = st.builds(
    Topology,
    host=st.sampled_from(("", "h", "i")),
    pid_namespace=st.sampled_from(("", "1", "2")),
    kv_memory=st.sampled_from(("", "host", "device")),
)
records = st.dictionaries(
    st.sampled_from(NAMES),
    st.builds(
        LaneRecord,
        status=st.sampled_from(LaneStatus),
        until=st.floats(0, 100),
        code=st.just("canary_failed"),
        reason=st.just("it failed"),
    ),
)
facts_of = st.builds(
    PairFacts,
    own=names,
    granted=names,
    absent=names.map(
        lambda found: tuple(
            RejectedTransport(name=n, code="not_installed", reason="absent") for n in found
        )
    ),
    place=places,
    peer=places,
)


def settled(lanes: dict[str, LaneRecord]) -> dict[str, LaneRecord]:
    """As records are made: what a handoff lost says so."""
    return {
        name: LaneRecord(
            status=lane.status,
            until=lane.until,
            code=LANE_FAILED if lane.status is LaneStatus.LOST else lane.code,
            reason=lane.reason,
        )
        for name, lane in lanes.items()
    }


@given(facts=facts_of, lanes=records, now=st.floats(0, 100))
def test_every_transport_is_either_usable_or_rejected_with_a_reason(
    facts: PairFacts, lanes: dict[str, LaneRecord], now: float
) -> None:
    ranking = rank_transports(facts, settled(lanes), now=now)
    usable = [candidate.name for candidate in ranking.candidates]
    rejected = [each.name for each in ranking.rejected]
    assert sorted(usable + rejected) == sorted({*facts.own, *facts.granted})
    assert all(each.code and each.reason for each in ranking.rejected)
    assert set(ranking.due) <= set(usable)
    assert ranking == rank_transports(facts, settled(lanes), now=now)


@given(facts=facts_of, lanes=records, now=st.floats(0, 100))
def test_what_may_be_used_both_sides_have_and_no_cooldown_bars(
    facts: PairFacts, lanes: dict[str, LaneRecord], now: float
) -> None:
    ranking = rank_transports(facts, settled(lanes), now=now)
    for candidate in ranking.candidates:
        assert candidate.name in facts.own
        assert candidate.name in facts.granted
        if candidate.name == "nixl":
            assert not processes_apart(facts.place, facts.peer)
            assert not memory_apart(facts.place, facts.peer)
        lane = lanes.get(candidate.name, LaneRecord())
        assert candidate.needs_canary == (lane.status is not LaneStatus.PROVEN)
        failed = lane.status in {LaneStatus.REJECTED, LaneStatus.LOST}
        assert (candidate.failed is not None) == (failed and now < lane.until)
    cooling = [c for c in ranking.candidates if c.failed is not None]
    assert not cooling or cooling == list(ranking.candidates)  # the last resort, all of it
    assert {each.name for each in ranking.barred} >= {c.name for c in cooling}


@given(facts=facts_of, lanes=records, now=st.floats(0, 100))
def test_the_receivers_order_decides_among_what_has_not_failed(
    facts: PairFacts, lanes: dict[str, LaneRecord], now: float
) -> None:
    usable = [c.name for c in rank_transports(facts, settled(lanes), now=now).candidates]
    failed = {LaneStatus.REJECTED, LaneStatus.LOST}
    sound = [n for n in usable if lanes.get(n, LaneRecord()).status not in failed]
    order = facts.granted.index
    assert sound == sorted(sound, key=order)
    assert usable[: len(sound)] == sound
    assert usable[len(sound) :] == sorted(usable[len(sound) :], key=order)


@given(facts=facts_of)
def test_lasting_reasons_are_named(facts: PairFacts) -> None:
    for each in rank_transports(facts, {}, now=0.0).rejected:
        if each.name not in facts.own:
            absent = {rejected.name for rejected in facts.absent}
            assert each.code == ("not_installed" if each.name in absent else NOT_HERE)
        elif each.name not in facts.granted:
            assert each.code == NOT_THERE
        elif not processes_apart(facts.place, facts.peer):
            assert each.code == MEMORY_KIND
            assert memory_apart(facts.place, facts.peer)
            assert "host memory on the" in each.reason
            assert "device memory on the" in each.reason
        else:
            assert each.code == PID_NAMESPACE
            assert facts.place.pid_namespace in each.reason
            assert facts.peer.pid_namespace in each.reason


@given(first=st.floats(0.01, 60), longest=st.floats(0.01, 600), failures=st.integers(1, 10_000))
def test_cooldowns_double_up_to_a_bound(first: float, longest: float, failures: int) -> None:
    settings = CooldownSettings(first_s=first, longest_s=longest)
    seconds = settings.seconds(failures)
    assert 0 < seconds <= longest
    assert settings.seconds(failures + 1) in {2 * seconds, longest}
    assert settings.seconds(1) == min(first, longest)


@given(
    events=st.lists(
        st.one_of(
            st.sampled_from(("canary fails", "canary arrives", "handoff breaks", "delivered")),
            st.floats(0, 400),
        ),
        max_size=40,
    )
)
def test_a_lane_is_used_again_exactly_when_its_cooldown_is_over(events: list[str | float]) -> None:
    clock = SteppedClock(now=0.0)
    book = LaneRecords(cooldown=CooldownSettings(), clock=clock)
    here = Topology()
    pair = book.add(PairRecord(worker_id="d", address="a", incarnation="i", place=here))
    facts = PairFacts(own=("nixl", "grpc"), granted=("nixl", "grpc"), place=here, peer=here)
    barred_until, failures, fails = 0.0, 0, False
    for event in events:
        if isinstance(event, float):
            clock.now += event
        elif event == "canary arrives":
            book.proven(pair, "nixl", gbps=1.0)
            fails = False
        elif event == "delivered":
            book.delivered(pair, "nixl")
            failures = failures if fails else 0
        else:
            note = book.rejected if event == "canary fails" else book.lost
            failures, fails = failures + 1, True
            seconds = note(pair, "nixl", TransportError("broken"))
            assert seconds == min(30.0 * 2 ** (failures - 1), 300.0)
            barred_until = clock.now + seconds
        ranking = rank_transports(facts, pair.lanes, now=clock.now)
        usable = [candidate.name for candidate in ranking.candidates]
        assert "grpc" in usable
        assert ("nixl" in usable) == (not fails or clock.now >= barred_until)
        assert (usable[0] == "nixl") == (not fails)
        assert ranking.due == (("nixl",) if fails and clock.now >= barred_until else ())
