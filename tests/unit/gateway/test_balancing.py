"""Order of workers, breakers, and the pair that is chosen."""

import dataclasses
import random

import pytest

from gateway.balancing.base import Candidate
from gateway.balancing.least_loaded import LeastLoaded
from gateway.balancing.power_of_two import PowerOfTwo
from gateway.balancing.registry import balancers
from gateway.balancing.round_robin import RoundRobin
from gateway.breaker import MAX_COOLDOWN_S, Breaker, BreakerSettings
from gateway.workers import ChoicePolicy, Workers
from shared.discovery.card import WorkerCard
from shared.errors import ConfigError, InternalError, OverloadedError, UnavailableError
from tests.support.made_up_workers import MODEL, Cards, card
from tests.support.stepped_clock import SteppedClock

SETTINGS = BreakerSettings(failures=2, cooldown_s=5.0)
POLICY = ChoicePolicy(name="least_loaded", make_balancer=LeastLoaded)
LOST = UnavailableError("no connection")


def make_workers(*cards: WorkerCard, clock: SteppedClock | None = None) -> Workers:
    return Workers(
        Cards(*cards),
        policy=POLICY,
        breaker=SETTINGS,
        clock=clock if clock is not None else SteppedClock(),
    )


def candidates(*loads: tuple[str, int]) -> list[Candidate]:
    return [
        Candidate(worker_id=name, in_flight_tokens=load, reported_tokens=0, free_pages=0)
        for name, load in loads
    ]


def names(ordered: list[Candidate]) -> list[str]:
    return [candidate.worker_id for candidate in ordered]


@pytest.mark.parametrize("name", balancers().names())
def test_every_policy_permutes(name: str) -> None:
    balancer = balancers().get(name)()
    assert balancer.order([]) == []
    given = candidates(("b", 3), ("a", 1), ("c", 2))
    for _ in range(5):
        assert sorted(names(balancer.order(given))) == ["a", "b", "c"]


def test_unknown_policy() -> None:
    with pytest.raises(ConfigError, match="least_loaded"):
        balancers().get("leastloaded")


def test_round_robin_takes_turns() -> None:
    balancer = RoundRobin()
    given = candidates(("b", 0), ("a", 9))
    assert [balancer.order(given)[0].worker_id for _ in range(4)] == ["a", "b", "a", "b"]


def test_least_loaded_believes_the_larger_count() -> None:
    given = candidates(("a", 5), ("b", 3))
    reported = Candidate(worker_id="c", in_flight_tokens=0, reported_tokens=4, free_pages=0)
    assert names(LeastLoaded().order([*given, reported])) == ["b", "c", "a"]


def test_least_loaded_spreads_ties() -> None:
    balancer = LeastLoaded()
    given = candidates(("a", 0), ("b", 0))
    assert {balancer.order(given)[0].worker_id for _ in range(2)} == {"a", "b"}
    roomy = Candidate(worker_id="r", in_flight_tokens=0, reported_tokens=0, free_pages=9)
    assert balancer.order([*given, roomy])[0].worker_id == "r"


def test_breaker_opens_tries_and_closes() -> None:
    breaker = Breaker(SETTINGS)
    breaker.failed(0)
    assert breaker.allows(0)
    breaker.failed(0)
    assert not breaker.allows(4.9)
    assert breaker.allows(5)
    breaker.chosen(5)
    assert not breaker.allows(5)
    breaker.failed(6)
    assert not breaker.allows(15.9)
    assert breaker.allows(16)
    breaker.succeeded()
    assert breaker.allows(6)
    breaker.failed(20)
    assert breaker.allows(20)


def test_breaker_cooldown_is_bounded() -> None:
    breaker = Breaker(SETTINGS)
    for _ in range(20):
        breaker.failed(0)
    assert breaker.allows(MAX_COOLDOWN_S)


def test_choose_and_avoid() -> None:
    workers = make_workers(card("p0"), card("p1"), *(card(f"d{i}") for i in range(5)))
    pair = workers.choose(avoid={"p0", "d0"})
    assert pair.prefill.worker_id == "p1"
    assert len(pair.decodes) == 3
    assert "d0" not in {d.worker_id for d in pair.decodes}
    last = workers.choose(avoid={"p0", "p1"})
    assert last.prefill.worker_id in {"p0", "p1"}
    assert workers.has_alternative(avoid={"p0"})
    assert not workers.has_alternative(avoid={"p0", "p1"})


def test_load_steers_and_is_given_back() -> None:
    workers = make_workers(card("p0"), card("p1"), card("d0"))
    with workers.hold("p0", 50), workers.hold("p0", 10):
        assert workers.in_flight_tokens("p0") == 60
        assert all(workers.choose(avoid=set()).prefill.worker_id == "p1" for _ in range(3))
    assert workers.in_flight_tokens("p0") == 0


def test_decode_must_serve_the_same_model() -> None:
    other = dataclasses.replace(MODEL, model_hash="b")
    workers = make_workers(card("p0"), card("d0", model=other))
    assert workers.missing() == "no_matching_pair"
    with pytest.raises(UnavailableError, match="none serves the model") as caught:
        workers.choose(avoid=set())
    assert caught.value.error_code == "no_decode_worker"
    renamed = dataclasses.replace(MODEL, name="n")
    assert make_workers(card("p0"), card("d0", model=renamed)).missing() is None


def test_lost_worker_is_skipped_until_its_trial() -> None:
    clock = SteppedClock()
    workers = make_workers(card("p0"), card("p1"), card("d0"), clock=clock)
    for _ in range(2):
        workers.failed("p0", LOST)
        workers.failed("p1", OverloadedError("full"))
        workers.failed("p1", UnavailableError("drains", code="draining"))
    assert all(workers.choose(avoid=set()).prefill.worker_id == "p1" for _ in range(4))
    clock.now += 5
    assert {workers.choose(avoid=set()).prefill.worker_id for _ in range(4)} == {"p0", "p1"}


def test_a_worker_that_only_says_it_is_full_stays_and_closes_its_breaker() -> None:
    clock = SteppedClock()
    workers = make_workers(card("p0"), card("p1"), card("d0"), clock=clock)
    for _ in range(2):
        workers.failed("p0", LOST)
    clock.now += SETTINGS.cooldown_s
    workers.failed("p0", OverloadedError("full"))
    assert {workers.choose(avoid=set()).prefill.worker_id for _ in range(4)} == {"p0", "p1"}


def test_defects_in_a_row_open_the_breaker() -> None:
    workers = make_workers(card("p0"), card("p1"), card("d0"))
    for _ in range(2):
        workers.failed("p0", InternalError("cuda error"))
    assert all(workers.choose(avoid=set()).prefill.worker_id == "p1" for _ in range(4))


def test_power_of_two_takes_the_lighter_of_the_two_it_draws() -> None:
    balancer = PowerOfTwo(random.Random(3))
    given = candidates(("a", 9), ("b", 5), ("c", 1))
    firsts = [names(balancer.order(given))[0] for _ in range(300)]
    # The heaviest of three never wins a draw; the lightest wins two of three.
    assert "a" not in firsts
    assert 150 < firsts.count("c") < 250
    roomy = Candidate(worker_id="r", in_flight_tokens=9, reported_tokens=0, free_pages=5)
    tie = PowerOfTwo(random.Random(1))
    assert all(names(tie.order([given[0], roomy]))[0] == "r" for _ in range(9))


def test_power_of_two_keeps_many_workers_even() -> None:
    balancer = PowerOfTwo(random.Random(7))
    loads = dict.fromkeys("abcdefgh", 0)
    for _ in range(800):
        loads[names(balancer.order(candidates(*loads.items())))[0]] += 1
    assert max(loads.values()) - min(loads.values()) <= 10


def test_all_breakers_open_means_trying_anyway() -> None:
    workers = make_workers(card("p0"), card("d0"))
    for _ in range(3):
        workers.failed("p0", LOST)
    assert workers.choose(avoid=set()).prefill.worker_id == "p0"


def test_a_worker_that_is_gone_is_no_last_resort() -> None:
    clock = SteppedClock()
    workers = make_workers(card("p0"), card("d0"), clock=clock)
    workers.gone("d0")
    assert workers.missing() == "no_decode_worker"
    with pytest.raises(UnavailableError) as caught:
        workers.choose(avoid=set())
    assert caught.value.error_code == "no_decode_worker"
    clock.now += SETTINGS.cooldown_s
    assert workers.choose(avoid=set()).decodes[0].worker_id == "d0"


def test_a_new_process_under_a_known_name_is_welcome() -> None:
    cards = Cards(card("p0"), card("d0"))
    workers = Workers(cards, policy=POLICY, breaker=SETTINGS, clock=SteppedClock())
    assert workers.missing() is None
    workers.gone("d0")
    assert workers.missing() == "no_decode_worker"
    cards.listed[1] = card("d0", incarnation="2")
    assert workers.missing() is None


def test_served_model() -> None:
    assert make_workers().served() is None
    served = make_workers(card("p0"), card("d0", max_model_len=50)).served()
    assert served is not None
    assert (served.name, served.max_model_len) == ("m", 50)


def test_old_breakers_are_forgotten() -> None:
    workers = make_workers(card("p0"), card("d0"))
    for index in range(1000):
        workers.succeeded(f"old{index}")
    workers.choose(avoid=set())
    assert len(workers._breakers) <= 3
