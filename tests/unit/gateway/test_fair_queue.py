"""Fair turns between keys: shares by weight, no starvation, nothing lost."""

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.fair_queue import Entry, FairQueue

KEYS = ("a", "b", "c")
WEIGHTS = {"a": 1.0, "b": 2.0, "c": 0.5}


def test_one_key_is_first_come_first_served() -> None:
    queue: FairQueue[int] = FairQueue()
    for item, cost in enumerate((5, 1, 9)):
        queue.push(item, key="a", cost=cost)
    assert (len(queue), queue.cost) == (3, 15)
    assert [queue.pop().item for _ in range(3)] == [0, 1, 2]
    assert (len(queue), queue.cost, queue.head()) == (0, 0, None)


def test_a_newcomer_is_served_before_the_rest_of_a_long_line() -> None:
    queue: FairQueue[str] = FairQueue()
    for _ in range(100):
        queue.push("greedy", key="a", cost=100)
    assert queue.pop().item == "greedy"
    queue.push("modest", key="b", cost=100)
    assert "modest" in [queue.pop().item for _ in range(2)]


def test_an_idle_key_saves_nothing_up() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push("b", key="b", cost=1)
    for _ in range(50):
        queue.push("a", key="a", cost=1)
    for _ in range(30):
        queue.pop()
    for _ in range(20):
        queue.push("b", key="b", cost=1)
    served = [queue.pop().item for _ in range(20)]
    assert abs(served.count("a") - served.count("b")) <= 1


def test_what_leaves_unserved_costs_its_key_nothing() -> None:
    queue: FairQueue[str] = FairQueue()
    given_up = [queue.push("a", key="a", cost=1_000_000) for _ in range(50)]
    queue.push("b", key="b", cost=10)
    for entry in given_up:
        assert queue.remove(entry)
        assert not queue.remove(entry)
    queue.push("a", key="a", cost=10)
    for _ in range(9):
        queue.push("b", key="b", cost=10)
    assert "a" in [queue.pop().item for _ in range(2)]


@settings(deadline=None)
@given(
    lines=st.fixed_dictionaries(
        {key: st.lists(st.integers(1, 500), min_size=12, max_size=16) for key in KEYS}
    )
)
def test_shares_follow_the_weights(lines: dict[str, list[int]]) -> None:
    """The bound of start-time fair queueing, in every interval in which both keys wait."""
    queue: FairQueue[str] = FairQueue()
    for key, costs in lines.items():
        for cost in costs:
            queue.push(key, key=key, cost=cost, weight=WEIGHTS[key])
    got = defaultdict(list)
    order: list[tuple[str, int]] = []
    while all(queue.cost_of(key) for key in KEYS):
        entry = queue.pop()
        order.append((entry.key, entry.cost))
        got[entry.key].append(entry.cost)
    for key in KEYS:
        assert got[key] == lines[key][: len(got[key])]
    shares = dict.fromkeys(KEYS, 0.0)
    history = [dict(shares)]
    for key, cost in order:
        shares[key] += cost / WEIGHTS[key]
        history.append(dict(shares))
    for one, other in (("a", "b"), ("a", "c"), ("b", "c")):
        bound = max(lines[one]) / WEIGHTS[one] + max(lines[other]) / WEIGHTS[other]
        leads = [step[one] - step[other] for step in history]
        assert max(leads) - min(leads) <= bound + 1e-6


class Queueing(RuleBasedStateMachine):
    """Arrivals, services and departures in any order; every waiting head has a last moment."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[int] = FairQueue()
        self.waiting: dict[str, list[Entry[int]]] = {key: [] for key in KEYS}
        # Tokens of each other key that were served since this key's head became head.
        self.passed: dict[str, dict[str, int]] = {key: dict.fromkeys(KEYS, 0) for key in KEYS}
        self.largest = 1

    @rule(key=st.sampled_from(KEYS), cost=st.integers(1, 300))
    def push(self, key: str, cost: int) -> None:
        if not self.waiting[key]:
            self.passed[key] = dict.fromkeys(KEYS, 0)
        entry = self.queue.push(cost, key=key, cost=cost, weight=WEIGHTS[key])
        self.waiting[key].append(entry)
        self.largest = max(self.largest, cost)

    @precondition(lambda self: any(self.waiting.values()))
    @rule()
    def pop(self) -> None:
        head = self.queue.head()
        entry = self.queue.pop()
        assert entry is head
        assert entry is self.waiting[entry.key].pop(0)
        self.passed[entry.key] = dict.fromkeys(KEYS, 0)
        for key in KEYS:
            if key != entry.key and self.waiting[key]:
                self.passed[key][entry.key] += entry.cost

    @precondition(lambda self: any(self.waiting.values()))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from([key for key in KEYS if self.waiting[key]]))
        entry = data.draw(st.sampled_from(self.waiting[key]))
        assert self.queue.remove(entry)
        self.waiting[key].remove(entry)

    @invariant()
    def nothing_is_lost(self) -> None:
        entries = [entry for line in self.waiting.values() for entry in line]
        assert len(self.queue) == len(entries)
        assert self.queue.cost == sum(entry.cost for entry in entries)
        for key in KEYS:
            assert self.queue.cost_of(key) == sum(entry.cost for entry in self.waiting[key])

    @invariant()
    def nobody_starves(self) -> None:
        """Others pass a waiting head by their weighted share of its last service, and one more."""
        for key in KEYS:
            for other, tokens in self.passed[key].items():
                share = self.largest / WEIGHTS[key] * WEIGHTS[other]
                assert tokens <= share + 2 * self.largest


TestQueueing = Queueing.TestCase
TestQueueing.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


def test_the_estimate_of_what_is_ahead_is_what_is_served_before() -> None:
    queue: FairQueue[str] = FairQueue()
    for key in ("a", "b"):
        for _ in range(10):
            queue.push(key, key=key, cost=10)
    assert queue.ahead(key="c", cost=10) == 20
    assert queue.ahead(key="a", cost=10) == 100 + 100
    assert queue.ahead(key="c", cost=10, weight=0.5) == 40
    queue.push("c", key="c", cost=10)
    before = 0
    while (entry := queue.pop()).key != "c":
        before += entry.cost
    assert before == pytest.approx(20, abs=10)
