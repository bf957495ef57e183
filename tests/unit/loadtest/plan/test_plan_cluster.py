"""A simulated gateway with its workers: nothing is lost, limits hold, more is never worse."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decode_service.engine import reservations
from gateway import dispatcher
from gateway import workers as gateway_workers
from gateway.config import GatewayConfig
from loadtest.plan import cluster, prefill_worker, validate
from loadtest.plan.arms import Arm
from loadtest.plan.cluster import GatewayRules, Split
from loadtest.plan.router import BALANCERS
from prefill_service.config import PrefillConfig
from prefill_service.engine import courier
from shared.errors import ConfigError
from tests.support.plan_parts import made_profile, simulated

SIZES = st.tuples(st.integers(1, 4_000), st.integers(1, 60))


def limits(**changes: int) -> dict[str, int]:
    return {
        "max_batch": 64,
        "pages_front": 100_000,
        "pages_rest": 100_000,
        "slab_bytes": 1 << 40,
    } | changes


def mixed(count: int, seed: int) -> tuple[list[tuple[int, int]], list[float]]:
    random = Random(seed)
    sizes = [(random.randint(1, 3_000), random.randint(1, 80)) for _ in range(count)]
    return sizes, sorted(random.uniform(0, count / 2) for _ in range(count))


def test_constants_are_those_of_the_services():
    gateway, prefill = GatewayConfig(), PrefillConfig()
    assert cluster.PROMPTS_PER_WORKER == dispatcher.PROMPTS_PER_WORKER
    assert cluster.TARGETS == gateway_workers._MAX_TARGETS
    assert GatewayRules().balancer == gateway.balancer
    assert GatewayRules().worker_prompt_tokens == gateway.worker_prompt_tokens
    assert gateway.queue_tokens == validate.GATEWAY_QUEUE_TOKENS
    assert gateway.queue_requests == validate.GATEWAY_QUEUE_REQUESTS
    assert prefill.reserve_wait_s == prefill_worker.RESERVE_WAIT_S
    assert prefill_worker.MAX_BACKOFF_S == courier.MAX_BACKOFF_S
    assert prefill_worker.FIRST_BACKOFF_S == courier.FIRST_BACKOFF_S
    assert prefill_worker.BUSY_RETRY_S == reservations.BUSY_RETRY_S


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(SIZES, min_size=1, max_size=40),
    seed=st.integers(0, 99),
    workers=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    pages=st.integers(4, 400),
    balancer=st.sampled_from(BALANCERS),
    keep=st.sampled_from([0.2, 0.5, 1.0]),
)
def test_every_request_ends_once(sizes, seed, workers, pages, balancer, keep):
    profile = made_profile(limits=limits(pages_front=pages, pages_rest=pages, max_batch=3))
    random = Random(seed)
    found = simulated(
        profile,
        sizes,
        sorted(random.uniform(0, 5) for _ in sizes),
        split=Split(prefill=workers[0], decode=workers[1]),
        arm=Arm("some", keep, "delta"),
        rules=GatewayRules(balancer=balancer, queue_tokens=8_000),
        seed=seed,
    )
    assert [o.index for o in found.outcomes] == list(range(len(sizes)))
    for outcome, (prompt, answer) in zip(found.outcomes, sizes, strict=True):
        if outcome.finished:
            assert (outcome.prompt_tokens, outcome.answer_tokens) == (prompt, answer)
            assert outcome.ttft_s is not None
            assert outcome.e2e_s is not None
            assert 0 < outcome.ttft_s <= outcome.e2e_s
        else:
            assert outcome.failure in {"too_large", "queue_full", "no_room"}


def test_the_times_of_one_request_add_up():
    profile = made_profile(
        prefill_s=lambda _tokens, _rate: 0.5,
        step_s=lambda _policy, _batch, _context: 0.02,
        transfer=[{"nbytes": 1, "seconds": 0.4}, {"nbytes": 1 << 30, "seconds": 0.4}],
        overheads={"first_token_s": 0.03, "handoff_s": 0.07},
    )
    (outcome,) = simulated(profile, [(1_000, 11)], [2.0]).outcomes
    assert outcome.ttft_s == pytest.approx(0.5 + 0.03)
    # Of four parts of 0.1 s each, the last one leaves when the prompt is read.
    assert outcome.e2e_s == pytest.approx(0.5 + 0.1 + 0.07 + 10 * 0.02 + 0.03)
    assert outcome.itl_max_s == pytest.approx(0.1 + 0.07 + 0.02)
    assert outcome.tpot_s == pytest.approx((0.1 + 0.07 + 0.2) / 10)


def test_a_slow_link_is_shared_by_the_caches_that_follow_one_another():
    profile = made_profile(
        prefill_s=lambda _tokens, _rate: 0.1,
        transfer=[{"nbytes": 1, "seconds": 1.0}, {"nbytes": 1 << 30, "seconds": 1.0}],
    )
    found = simulated(profile, [(1_000, 2)] * 4, [0.0] * 4).outcomes
    ends = [o.e2e_s for o in found if o.e2e_s is not None]
    assert ends == pytest.approx([1.025 + 0.01 + i for i in range(4)], abs=0.06)


def test_a_pruned_prompt_takes_its_share_of_bytes_pages_and_context():
    profile = made_profile(step_s=lambda _policy, _batch, context: context / 1e5)
    found = {
        rate: simulated(profile, [(2_000, 2)], [0.0], arm=Arm("a", rate, "dense")).outcomes[0]
        for rate in (0.2, 1.0)
    }
    assert found[0.2].ttft_s == pytest.approx(0.4, rel=0.01)
    assert found[1.0].ttft_s == pytest.approx(2.0, rel=0.01)
    # Two layers of eight hold all tokens, six a fifth: 0.4 of the slots.
    assert found[0.2].tpot_s == pytest.approx(0.4 * 2_000 / 1e5, rel=0.01)
    assert found[1.0].tpot_s == pytest.approx(2_000 / 1e5, rel=0.01)


def test_a_short_prompt_is_not_pruned():
    profile = made_profile()
    pruned, whole = (
        simulated(profile, [(63, 1)], [0.0], arm=Arm("a", rate, "dense")).outcomes[0]
        for rate in (0.2, 1.0)
    )
    assert pruned == whole


def test_pages_bound_how_many_answers_run_at_once():
    one = made_profile(limits=limits(pages_front=10, pages_rest=10))
    many = made_profile(limits=limits(pages_front=20, pages_rest=20))
    sizes = [(100, 50)] * 20  # 149 slots: 10 pages
    taken = [simulated(p, sizes, [0.0] * 20).seconds for p in (one, many)]
    assert taken[0] > 20 * 49 * 0.01
    assert taken[1] < 0.7 * taken[0]


def test_what_can_never_fit_is_refused_and_the_others_are_served():
    profile = made_profile(limits=limits(pages_rest=10))
    found = simulated(profile, [(100, 20), (1_000, 20), (100, 20)], [0.0, 0.0, 0.0])
    assert [o.failure for o in found.outcomes] == [None, "too_large", None]


def test_who_finds_no_room_for_ten_seconds_is_turned_away():
    profile = made_profile(limits=limits(pages_front=70, pages_rest=70))
    found = simulated(profile, [(10, 1_100), (10, 1_100), (10, 2)], [0.0, 0.0, 0.0])
    assert [o.failure for o in found.outcomes] == [None, "no_room", None]


def test_a_full_queue_refuses():
    profile = made_profile()
    rules = GatewayRules(queue_tokens=3_000)
    found = simulated(profile, [(1_000, 2)] * 9, [0.0] * 9, rules=rules)
    # One is computed, three wait; one prompt may always wait.
    assert [o.failure for o in found.outcomes] == [None] * 4 + ["queue_full"] * 5
    rules = GatewayRules(queue_requests=2)
    found = simulated(profile, [(1_000, 2)] * 9, [0.0] * 9, rules=rules)
    assert sum(o.failure is None for o in found.outcomes) == 3


def test_the_same_seed_gives_the_same_run():
    sizes, moments = mixed(200, seed=3)
    for balancer in BALANCERS:
        runs = [
            simulated(
                made_profile(),
                sizes,
                moments,
                split=Split(prefill=2, decode=3),
                rules=GatewayRules(balancer=balancer),
                seed=seed,
            ).outcomes
            for seed in (1, 1, 2)
        ]
        assert runs[0] == runs[1]
        assert (runs[0] != runs[2]) == (balancer == "power_of_two")


def test_a_faster_device_makes_no_first_token_later():
    sizes, moments = mixed(300, seed=4)
    slow, fast = (
        simulated(made_profile(prefill_s=lambda t, _r, f=factor: f * t / 1000), sizes, moments)
        for factor in (1.0, 0.8)
    )
    for a, b in zip(slow.outcomes, fast.outcomes, strict=True):
        assert a.ttft_s is not None
        assert b.ttft_s is not None
        assert b.ttft_s <= a.ttft_s + 1e-9


def test_more_prefill_workers_make_the_mean_first_token_no_later():
    sizes, moments = mixed(400, seed=5)
    means = []
    for prefill in (1, 2, 4, 8):
        found = simulated(made_profile(), sizes, moments, split=Split(prefill=prefill, decode=1))
        means.append(sum(o.ttft_s or 0.0 for o in found.outcomes))
    assert means == sorted(means, reverse=True)


def test_one_device_for_both_loses_no_work():
    profile = made_profile(prefill_s=lambda _tokens, _rate: 0.2)
    sizes, moments = [(500, 21)] * 30, [0.5 * i for i in range(30)]
    both = simulated(profile, sizes, moments, split=Split(prefill=1, decode=1, shared_device=True))
    apart = simulated(profile, sizes, moments)
    assert all(o.finished for o in both.outcomes)
    assert both.seconds >= apart.seconds
    # While a prompt is read no step runs: the longest gap of a row is about its prefill.
    crowded = simulated(
        profile, [(500, 21)] * 2, [0.0, 0.25], split=Split(prefill=1, decode=1, shared_device=True)
    )
    gap = crowded.outcomes[0].itl_max_s
    assert gap is not None
    assert 0.2 <= gap <= 0.23


def test_a_cluster_without_one_role_is_refused():
    with pytest.raises(ConfigError, match="0P1D serves nothing"):
        simulated(made_profile(), [(1, 1)], [0.0], split=Split(prefill=0, decode=1))


def test_a_request_beyond_the_models_context_is_refused_and_a_load_of_them_is_none():
    found = simulated(made_profile(), [(16_000, 500), (100, 5)], [0.0, 0.0])
    assert [o.failure for o in found.outcomes] == ["too_long", None]
    with pytest.raises(ConfigError, match="1 of 1 requests are longer than the 16384 tokens"):
        simulated(made_profile(), [(16_000, 500)], [0.0])


def test_workers_of_one_host_slow_each_other_down_while_both_compute():
    profile = made_profile(
        prefill_s=lambda _tokens, _rate: 1.0, contention={"prefill": 1.5, "decode": 2.0}
    )
    sizes, moments = [(100, 201), (100, 1)], [0.0, 1.5]
    apart, together = (
        simulated(
            profile, sizes, moments, split=Split(prefill=1, decode=1, same_host=same)
        ).outcomes
        for same in (False, True)
    )
    # The first prompt meets no step; 200 steps of 10 ms follow it, from 1 s on.
    assert apart[0].e2e_s == pytest.approx(3.0, abs=0.02)
    assert apart[1].ttft_s == pytest.approx(1.0)
    assert together[1].ttft_s == pytest.approx(1.5)
    # From 1.5 to 3 s its steps take twice as long: 75 of them; the other 125 as ever.
    assert together[0].e2e_s == pytest.approx(1.0 + 75 * 0.02 + 125 * 0.01, abs=0.03)
    assert together[0].itl_max_s == pytest.approx(0.02, abs=1e-6)
