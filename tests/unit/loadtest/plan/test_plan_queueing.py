"""The simulation against closed formulas of queueing theory."""

import statistics
from random import Random

import pytest

from loadtest.plan.cluster import Split
from tests.support.plan_parts import made_profile, simulated


def poisson(rate: float, count: int, seed: int) -> list[float]:
    random, at, found = Random(seed), 0.0, []
    for _ in range(count):
        at += random.expovariate(rate)
        found.append(at)
    return found


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_prompts_of_one_length_wait_as_in_m_d_1(load: float):
    profile = made_profile(prefill_s=lambda _tokens, _rate: 0.1)
    count = 20_000
    moments = poisson(load / 0.1, count, seed=1)
    found = simulated(profile, [(100, 1)] * count, moments)
    waits = [o.ttft_s - 0.1 for o in found.outcomes if o.ttft_s is not None]
    # Pollaczek and Khinchine, no variance of the service.
    assert statistics.mean(waits) == pytest.approx(0.1 * load / (2 * (1 - load)), rel=0.08)
    assert found.prefill_use == pytest.approx(load, rel=0.03)


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_prompts_of_exponential_length_wait_as_in_m_m_1(load: float):
    profile = made_profile(prefill_s=lambda tokens, _rate: tokens / 1000)
    count, random = 20_000, Random(2)
    sizes = [(1 + min(8_000, int(random.expovariate(1 / 200))), 1) for _ in range(count)]
    mean = statistics.mean(prompt for prompt, _ in sizes) / 1000
    found = simulated(profile, sizes, poisson(load / mean, count, seed=3))
    waits = [
        o.ttft_s - prompt / 1000
        for o, (prompt, _) in zip(found.outcomes, sizes, strict=True)
        if o.ttft_s is not None
    ]
    assert statistics.mean(waits) == pytest.approx(mean * load / (1 - load), rel=0.1)


def test_two_workers_behind_one_queue_wait_as_in_m_d_2():
    profile = made_profile(prefill_s=lambda _tokens, _rate: 0.1)
    load, count = 0.8, 20_000
    moments = poisson(2 * load / 0.1, count, seed=4)
    found = simulated(profile, [(100, 1)] * count, moments, split=Split(prefill=2, decode=1))
    waits = [o.ttft_s - 0.1 for o in found.outcomes if o.ttft_s is not None]
    # Prompts are sent to the worker with fewer of them: between M/D/2 (0.0876 s by Cosmetatos'
    # approximation) and two M/D/1 queues (0.2 s), as jobs that join the shorter queue.
    assert 0.08 < statistics.mean(waits) < 0.2


def test_answers_without_waiting_stay_as_long_as_their_steps():
    """Steps that cost the same whatever the batch make every row's time its own: M/G/infinity."""
    profile = made_profile(prefill_s=lambda _tokens, _rate: 1e-6)
    count, rate = 4_000, 20.0
    found = simulated(profile, [(10, 101)] * count, poisson(rate, count, seed=5))
    spoken = [o.e2e_s - o.ttft_s for o in found.outcomes if o.e2e_s and o.ttft_s]
    # 100 steps of 10 ms, and half a step until the next one begins.
    assert statistics.mean(spoken) == pytest.approx(1.005, abs=0.001)
    assert max(spoken) <= 1.01 + 1e-9


def test_a_full_batch_bounds_the_throughput():
    profile = made_profile(prefill_s=lambda _tokens, _rate: 1e-6)
    count = 2_000
    found = simulated(profile, [(10, 101)] * count, [0.0] * count)
    # 64 rows of 100 steps of 10 ms: one batch a second.
    assert found.seconds == pytest.approx(-(-count // 64) * 1.0, rel=0.02)
