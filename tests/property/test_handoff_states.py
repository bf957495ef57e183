"""Model-based tests: the handoff state machine and the reservation table against plain models."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from decode_service.engine.handoffs import Busy, Reservation
from decode_service.engine.sequence import PromptKv
from shared.errors import HandoffError, StaleWriteError
from shared.types.handoff import (
    TRANSITIONS,
    HandoffKey,
    HandoffState,
    HandoffStateMachine,
)
from tests.support.decode_parts import TableParts, make_parts, reserve_spec

ORDER = [
    HandoffState.QUEUED,
    HandoffState.RESERVED,
    HandoffState.STREAMING,
    HandoffState.SEALED,
    HandoffState.COMMITTED,
    HandoffState.ADOPTED,
    HandoffState.RELEASED,
]
TERMINAL = {HandoffState.RELEASED, HandoffState.ABORTED, HandoffState.EXPIRED}


def allowed(before: HandoffState, after: HandoffState) -> bool:
    """The rules in words: one step along the line; from the line into an ending; endings drain."""
    if before in TERMINAL:
        return False
    if before is HandoffState.ABORTING:
        return after in {HandoffState.DRAINING, HandoffState.ABORTED}
    if before is HandoffState.DRAINING:
        return after is HandoffState.ABORTED
    if after in {HandoffState.ABORTING, HandoffState.EXPIRED}:
        return True
    here = ORDER.index(before)
    return ORDER[here + 1] is after


class StateMachineModel(RuleBasedStateMachine):
    """Random messages in random order; the machine obeys exactly those that the rules allow."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = HandoffStateMachine(HandoffKey("h"))
        self.state = HandoffState.QUEUED
        self.late = 0

    @rule(to=st.sampled_from(HandoffState))
    def message(self, to: HandoffState) -> None:
        expected = allowed(self.state, to)
        assert self.machine.try_advance(to) is expected
        if expected:
            self.state = to
        else:
            self.late += 1

    @rule(to=st.sampled_from(HandoffState))
    def strict_message(self, to: HandoffState) -> None:
        if allowed(self.state, to):
            self.machine.advance(to)
            self.state = to
        else:
            self.late += 1
            with pytest.raises(StaleWriteError):
                self.machine.advance(to)

    @invariant()
    def agrees(self) -> None:
        assert self.machine.state is self.state
        assert self.machine.late_events == self.late
        assert self.state.terminal == (self.state in TERMINAL)


TestStateMachine = StateMachineModel.TestCase
TestStateMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_every_state_reaches_an_end() -> None:
    for state in HandoffState:
        reached, frontier = {state}, [state]
        while frontier:
            for after in TRANSITIONS[frontier.pop()] - reached:
                reached.add(after)
                frontier.append(after)
        assert reached & TERMINAL


class _Slot:
    """What the model knows of one handoff."""

    def __init__(self, granted: Reservation, deadline: float) -> None:
        self.granted = granted
        self.lease = (granted.lease.slot, granted.lease.generation)
        self.state = "reserved"
        self.deadline: float | None = deadline
        self.writer = False


KEYS = st.integers(min_value=0, max_value=3).map(lambda i: HandoffKey(f"h{i}"))
LEASE, ADOPT, QUARANTINE, REMEMBER = 30.0, 20.0, 10.0, 60.0


class TableModel(RuleBasedStateMachine):
    """Random grants, writes, closes, commits, decodes, aborts and passing time."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: TableParts = make_parts(
            slab_bytes=4 * 4096,
            pages=12,
            lease_s=LEASE,
            adopt_lease_s=ADOPT,
            quarantine_s=QUARANTINE,
            remember_s=REMEMBER,
        )
        self.live: dict[HandoffKey, _Slot] = {}
        self.ended: dict[HandoffKey, float] = {}
        self.quarantined: dict[tuple[int, int], float] = {}

    @property
    def now(self) -> float:
        return self.parts.clock.now

    def end(self, key: HandoffKey) -> None:
        slot = self.live.pop(key)
        if slot.state in {"reserved", "streaming", "sealed"} and slot.writer:
            self.quarantined[slot.lease] = self.now + QUARANTINE
        self.ended[key] = self.now + REMEMBER

    @rule(key=KEYS)
    def reserve(self, key: HandoffKey) -> None:
        spec = reserve_spec(key)
        slot = self.live.get(key)
        if slot is not None and slot.state in {"reserved", "streaming"}:
            assert self.parts.table.reserve(spec) is slot.granted
            slot.deadline = self.now + LEASE
        elif slot is not None or key in self.ended:
            with pytest.raises(StaleWriteError):
                self.parts.table.reserve(spec)
        else:
            answer = self.parts.table.reserve(spec)
            if isinstance(answer, Busy):
                assert len(self.live) + len(self.quarantined) >= 3
                return
            self.live[key] = _Slot(answer, self.now + LEASE)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), stale=st.booleans())
    def write(self, data: st.DataObject, stale: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.live)))
        slot = self.live[key]
        number, generation = slot.lease
        generation += 1000 if stale else 0
        arguments = {"slot": number, "generation": generation, "offset": 0}
        if stale or slot.state not in {"reserved", "streaming"}:
            with pytest.raises(StaleWriteError):
                self.parts.table.write(**arguments, data=memoryview(b"late"))
            return
        self.parts.table.write(**arguments, data=memoryview(key.handoff_id.encode()))
        slot.state, slot.writer, slot.deadline = "streaming", True, self.now + LEASE

    @precondition(lambda self: self.live)
    @rule(data=st.data(), clean=st.booleans(), still=st.booleans())
    def writer_closed(self, data: st.DataObject, clean: bool, still: bool) -> None:
        """A writer that did not end cleanly may be still or not; the other kinds are."""
        key = data.draw(st.sampled_from(sorted(self.live)))
        slot, drained = self.live[key], clean or still
        self.parts.table.writer_closed(*slot.lease, clean=clean, drained=drained)
        if drained:
            self.quarantined.pop(slot.lease, None)
        slot.writer = not drained
        if slot.state not in {"reserved", "streaming"}:
            return
        if clean:
            slot.state, slot.deadline = "sealed", self.now + LEASE
        else:
            self.end(key)

    @precondition(lambda self: self.quarantined)
    @rule(data=st.data(), clean=st.booleans())
    def late_writer_leaves(self, data: st.DataObject, clean: bool) -> None:
        lease = data.draw(st.sampled_from(sorted(self.quarantined)))
        with pytest.raises(StaleWriteError):
            self.parts.table.write(
                slot=lease[0], generation=lease[1], offset=0, data=memoryview(b"late")
            )
        self.parts.table.writer_closed(*lease, clean=False, drained=False)
        assert self.parts.table.num_quarantined == len(self.quarantined), "it may still write"
        self.parts.table.writer_closed(*lease, clean=clean)
        del self.quarantined[lease]

    @precondition(lambda self: self.live)
    @rule(data=st.data(), good=st.booleans())
    def commit(self, data: st.DataObject, good: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.live)))
        slot = self.live[key]
        if slot.state != "sealed":
            with pytest.raises(HandoffError):
                self.parts.table.begin_commit(slot.granted)
            return
        self.parts.table.begin_commit(slot.granted)
        slot.granted.adopted = self.parts.adopted(slot.granted) if good else None
        self.parts.table.end_commit(slot.granted)
        if good and slot.writer:  # a second one, which went away and was not seen to be still
            self.quarantined[slot.lease] = self.now + QUARANTINE
        if good:
            slot.state, slot.deadline = "adopted", self.now + ADOPT
        else:
            self.end(key)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort_during_commit(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.live)))
        slot = self.live[key]
        if slot.state != "sealed":
            return
        self.parts.table.begin_commit(slot.granted)
        assert self.parts.table.abort(key)
        assert self.parts.table.holds(key), "the copy still uses slab and pages"
        assert self.parts.slab.is_writable(*slot.lease)
        slot.granted.adopted = self.parts.adopted(slot.granted)
        with pytest.raises(StaleWriteError):
            self.parts.table.end_commit(slot.granted)
        self.end(key)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.live)))
        slot = self.live[key]
        if slot.state != "adopted":
            with pytest.raises(StaleWriteError):
                self.parts.table.claim(key)
            return
        assert self.parts.table.claim(key) is slot.granted
        slot.state, slot.deadline = "running", None

    @precondition(lambda self: any(s.state == "running" for s in self.live.values()))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        running = sorted(k for k, s in self.live.items() if s.state == "running")
        key = data.draw(st.sampled_from(running))
        self.parts.table.release(self.live[key].granted)
        self.end(key)

    @rule(key=KEYS)
    def abort(self, key: HandoffKey) -> None:
        slot = self.live.get(key)
        drained = self.parts.table.abort(key)
        if slot is None:
            self.ended.setdefault(key, self.now + REMEMBER)
        elif slot.state != "running":
            self.end(key)
        if slot is not None:
            assert drained == (slot.lease not in self.quarantined)

    @rule(key=KEYS, to=st.sampled_from(["streaming", "sealed", "adopted", "running"]))
    def whole_way(self, key: HandoffKey, to: str) -> None:
        """Common runs in one rule, so that the rare endings after them are reached often."""
        if key in self.live or key in self.ended:
            return
        answer = self.parts.table.reserve(reserve_spec(key))
        if isinstance(answer, Busy):
            return
        slot = self.live[key] = _Slot(answer, self.now + LEASE)
        data = memoryview(key.handoff_id.encode())
        table, (number, generation) = self.parts.table, slot.lease
        table.write(slot=number, generation=generation, offset=0, data=data)
        slot.state, slot.writer = "streaming", True
        if to == "streaming":
            return
        table.writer_closed(*slot.lease, clean=True)
        slot.state, slot.writer = "sealed", False
        if to == "sealed":
            return
        table.begin_commit(answer)
        answer.adopted = self.parts.adopted(answer)
        table.end_commit(answer)
        slot.state, slot.deadline = "adopted", self.now + ADOPT
        if to == "running":
            table.claim(key)
            slot.state, slot.deadline = "running", None

    @rule(seconds=st.sampled_from([1.0, 9.0, 11.0, 25.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.parts.clock.now += seconds
        self.parts.table.reap()
        for key in [
            k for k, s in self.live.items() if s.deadline is not None and s.deadline <= self.now
        ]:
            self.end(key)
        # A slot that just expired has its whole quarantine ahead of it.
        self.quarantined = {k: t for k, t in self.quarantined.items() if t > self.now}
        self.ended = {k: t for k, t in self.ended.items() if t > self.now}

    # --- what must always hold --------------------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        table = self.parts.table
        table.check_integrity()
        assert table.num_live == len(self.live)
        assert table.num_quarantined == len(self.quarantined)
        for key, slot in self.live.items():
            assert table.find(key) is slot.granted
            expected = "adopted" if slot.state == "running" else slot.state
            assert slot.granted.state.value == expected
        assert table.idle == (not self.live and not self.quarantined)

    @invariant()
    def conserves(self) -> None:
        in_slab = {"reserved", "streaming", "sealed"}
        slots = sum(s.state in in_slab for s in self.live.values()) + len(self.quarantined)
        assert self.parts.slab.num_leases == slots
        pages = [set(s.granted.pages.rest.pages) for s in self.live.values()]
        assert sum(map(len, pages)) == len(set().union(*pages))
        used = sum(pool.pages.num_used for pool in self.parts.cache.pools.values())
        assert used == sum(
            len(s.granted.pages.front.pages) + len(s.granted.pages.rest.pages)
            for s in self.live.values()
        )

    def teardown(self) -> None:
        """Everything given up: nothing may be held."""
        for key, slot in list(self.live.items()):
            if slot.state == "running":
                self.parts.table.release(slot.granted)
            else:
                self.parts.table.abort(key)
        self.parts.clock.now += QUARANTINE + 1
        self.parts.table.reap()
        assert self.parts.table.idle
        self.parts.cache.check_idle()
        assert self.parts.slab.free_bytes == self.parts.slab.total_bytes


TestReservationTable = TableModel.TestCase
TestReservationTable.settings = settings(
    max_examples=100,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def test_remembered_handoffs_are_bounded() -> None:
    parts = make_parts(remember_max=5)
    for i in range(20):
        parts.table.abort(HandoffKey(f"h{i}"))
    assert parts.table.num_remembered == 5
    again = parts.table.reserve(reserve_spec(HandoffKey("h0")))
    assert isinstance(again, Reservation)
    with pytest.raises(StaleWriteError):
        parts.table.reserve(reserve_spec(HandoffKey("h19")))


def test_same_question_with_other_sizes_is_refused() -> None:
    parts = make_parts()
    spec = reserve_spec(HandoffKey("h"))
    first = parts.table.reserve(spec)
    assert parts.table.reserve(spec) is first
    with pytest.raises(StaleWriteError, match="other sizes"):
        parts.table.reserve(replace(spec, max_new_tokens=2))


def test_prompt_kv_is_what_an_adoption_needs() -> None:
    parts = make_parts()
    granted = parts.table.reserve(reserve_spec(HandoffKey("h")))
    assert isinstance(granted, Reservation)
    assert isinstance(parts.adopted(granted).prompt, PromptKv)


def test_asking_again_renews_the_lease() -> None:
    parts = make_parts(lease_s=LEASE)
    spec = reserve_spec(HandoffKey("h"))
    granted = parts.table.reserve(spec)
    assert isinstance(granted, Reservation)
    parts.clock.now += LEASE - 1
    assert parts.table.lease_ms(granted) == 1000
    parts.table.reserve(spec)
    parts.clock.now += LEASE - 1
    parts.table.reap()
    assert parts.table.holds(spec.handoff)
    parts.table.heartbeat(granted.lease.slot, granted.lease.generation)
    parts.clock.now += LEASE - 1
    parts.table.reap()
    assert parts.table.holds(spec.handoff)
    parts.clock.now += 1
    parts.table.reap()
    assert not parts.table.holds(spec.handoff)
