"""The planner's balancers against the gateway's own."""

from random import Random

import pytest

from gateway.balancing.base import Candidate
from gateway.balancing.registry import balancers
from loadtest.plan.router import BALANCERS, order_of
from shared.errors import ConfigError


def test_the_names_are_the_gateways():
    assert sorted(BALANCERS) == sorted(balancers().names())


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_the_lightest_are_those_of_the_gateway(workers: int):
    random = Random(workers)
    loads = [0] * workers
    order, own = order_of("least_loaded", loads, random), balancers().get("least_loaded")()
    for _ in range(500):
        chosen = order.choose(3)
        theirs = own.order(candidates(loads))
        assert len(set(chosen)) == min(3, workers)
        assert [loads[w] for w in chosen] == [c.load for c in theirs[: len(chosen)]]
        for worker in {*chosen[:1], random.randrange(workers)}:
            loads[worker] = max(0, loads[worker] + random.choice((-200, -100, 100, 300)))
            order.changed(worker)


def test_equal_workers_take_turns():
    order = order_of("least_loaded", [0] * 4, Random(0))
    assert sorted(order.choose(1)[0] for _ in range(8)) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_two_draws_prefer_the_lighter_as_often_as_the_gateway():
    loads = [0, 10, 20, 30]
    order = order_of("power_of_two", loads, Random(5))
    own = balancers().get("power_of_two")()
    mine, theirs = [0] * 4, [0] * 4
    for _ in range(6_000):
        mine[order.choose(3)[0]] += 1
        theirs[int(own.order(candidates(loads))[0].worker_id)] += 1
    # Of six pairs the lightest wins three, the next two, then one; the heaviest none.
    assert [n / 1_000 for n in mine] == pytest.approx([3, 2, 1, 0], abs=0.2)
    assert [n / 1_000 for n in theirs] == pytest.approx([3, 2, 1, 0], abs=0.2)


def test_turns_are_those_of_the_gateway():
    order, own = order_of("round_robin", [0] * 3, Random(0)), balancers().get("round_robin")()
    for _ in range(7):
        theirs = tuple(int(c.worker_id) for c in own.order(candidates([0] * 3)))
        assert order.choose(3) == theirs


def test_an_unknown_balancer_is_named():
    with pytest.raises(ConfigError, match="balancer 'dice' is unknown"):
        order_of("dice", [0], Random(0))


def candidates(loads: list[int]) -> list[Candidate]:
    return [
        Candidate(worker_id=str(w), in_flight_tokens=load, reported_tokens=0, free_pages=0)
        for w, load in enumerate(loads)
    ]
