"""What a search finds: splits follow the work, pruning and sparse decode move them."""

from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from loadtest.load.settings import Api, LoadSettings
from loadtest.load.workloads import Profile
from loadtest.plan.arms import Arm, arm_named, arms_of
from loadtest.plan.cluster import GatewayRules, Split
from loadtest.plan.demand import Demand
from loadtest.plan.planning import PlanSettings, plan
from loadtest.plan.search import Planner
from shared.errors import ConfigError
from tests.support.plan_parts import FULL, made_profile

RULES = GatewayRules()
BOTH = Arm("both", 0.2, "delta")


def load(workload: str = "rag", **changes: object) -> LoadSettings:
    chosen = {"host": "", "out": Path(), "workload": workload, "profile": Profile.CPU} | changes
    return LoadSettings(**chosen)  # type: ignore[arg-type]


PROFILE = made_profile(
    # DELTA reads a quarter of the context.
    step_s=lambda policy, batch, context: (
        0.01 + batch * context * (1e-6 if policy == "dense" else 2.5e-7)
    )
)


@cache
def planner(arm: Arm, workload: str = "rag") -> Planner:
    return Planner(PROFILE, Demand(load(workload)), arm=arm, rules=RULES)


def test_pruning_takes_workers_from_prefill():
    shares = {
        arm.name: planner(arm).fluid.prefill_share
        for arm in (FULL, Arm("claa", 0.2, "dense"), Arm("delta", 1.0, "delta"))
    }
    assert shares["claa"] < shares["full"] < shares["delta"]


def test_the_smallest_cluster_is_the_smallest_and_serves_the_rate():
    found = planner(FULL).smallest(3.0)
    assert found is not None
    gpus, trial = found
    assert trial.held
    assert trial.split.gpus == gpus
    assert not planner(FULL).best_at(gpus - 1, 3.0).held
    with_both = planner(BOTH).smallest(3.0)
    assert with_both is not None
    assert with_both[0] < gpus


def test_the_highest_rate_grows_with_the_cluster_and_is_held():
    rates = []
    for gpus in (2, 4, 8):
        found = planner(BOTH).highest(gpus)
        assert found is not None
        assert found.held
        assert found.rate <= planner(BOTH).fluid.capacity(found.split)
        rates.append(found.rate)
    assert rates[0] < rates[1] < rates[2]


def test_a_rate_above_the_capacity_is_not_held():
    split = Split(prefill=1, decode=1)
    found = planner(FULL).trial(split, 1.5 * planner(FULL).fluid.capacity(split))
    assert not found.held
    assert found.prefill_use > 0.9


def test_one_gpu_is_shared_by_both_roles():
    (split,) = planner(FULL).splits(1)
    assert split.shared_device
    assert split.gpus == 1
    assert split.text == "1P1D on one"


def test_more_than_the_largest_cluster_can_carry_is_none():
    assert planner(FULL).smallest(1e6) is None


def test_bounds_that_nobody_can_keep_are_told_without_a_search():
    hopeless = Planner(PROFILE, Demand(load(slo=("rag:ttft=0.01,tpot=1",))), arm=FULL, rules=RULES)
    assert hopeless.idle_attainment == 0.0
    assert hopeless.smallest(1.0) is None
    assert hopeless.highest(64) is None


def test_arms_are_what_was_measured():
    assert [arm.name for arm in arms_of(PROFILE, ())] == ["full", "CLAA 0.2", "DELTA", "both 0.2"]
    names = [arm.name for arm in arms_of(PROFILE, (0.3, 0.5))]
    assert names == ["full", "CLAA 0.3", "CLAA 0.5", "DELTA", "both 0.3", "both 0.5"]
    with pytest.raises(ConfigError, match="keep rate 1 prunes nothing or all"):
        arms_of(PROFILE, (1.0,))
    with pytest.raises(ConfigError, match="arm 'half' is unknown"):
        arm_named(PROFILE, "half")


def test_a_plan_says_the_same_for_the_same_seed_and_in_other_processes():
    settings = PlanSettings(
        load=load("chat", slo=("chat:ttft=2,tpot=0.5",)),
        rate=4.0,
        sizes=(1, 2),
        keep_rates=(),
        rules=RULES,
        jobs=1,
    )
    first = plan(PROFILE, settings)
    assert [arm["name"] for arm in first["arms"]] == ["full", "CLAA 0.2", "DELTA", "both 0.2"]
    for arm in first["arms"]:
        smallest = arm["smallest"]
        assert smallest["held"]
        assert smallest["split"] in [row["split"] for row in smallest["candidates"]]
        assert [row["gpus"] for row in arm["sizes"]] == [1, 2]
    again = PlanSettings(
        load=settings.load, rate=4.0, sizes=(1, 2), keep_rates=(), rules=RULES, jobs=2
    )
    assert plan(PROFILE, again) == first


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rate": 0.0}, "rate is 0.0"),
        ({"rate": None, "sizes": ()}, "nothing is planned"),
        ({"sizes": (2_000,)}, "GPU counts are 1 to 1024"),
        ({"jobs": 0}, "jobs is 0"),
    ],
)
def test_settings_that_plan_nothing_are_refused(changes: dict[str, object], said: str):
    given = {
        "load": load(), "rate": 1.0, "sizes": (1,), "keep_rates": (), "rules": RULES, "jobs": 1,
    } | changes  # fmt: skip
    with pytest.raises(ConfigError, match=said):
        PlanSettings(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize("workload", ["cancel", "slow_reader", "multi_turn", "tools"])
def test_clients_that_are_not_simulated_are_refused(workload: str):
    with pytest.raises(ConfigError, match="cannot be simulated"):
        Demand(load(workload, api=Api.CHAT))


def test_a_trace_keeps_its_sizes_and_scales_its_gaps(tmp_path: Path):
    trace = tmp_path / "trace.jsonl"
    rows = [(0, 100), (1_000, 200), (3_000, 300)]
    trace.write_text(
        "".join(
            f'{{"timestamp": {at}, "input_length": {size}, "output_length": 5}}\n'
            for at, size in rows
        )
    )
    demand = Demand(load("trace", trace=trace))
    assert [r.prompt_tokens for r in demand.take(5)] == [100, 200, 300, 100, 200]
    moments = demand.moments(4, 2.0)
    gaps = [b - a for a, b in pairwise(moments)]
    assert gaps == pytest.approx([1 / 3, 2 / 3, 1 / 2])


def test_arrivals_at_another_rate_are_the_same_ones_nearer_together():
    demand = Demand(load("chat"))
    assert demand.moments(50, 4.0) == pytest.approx([m / 4 for m in demand.moments(50, 1.0)])
    assert demand.take(3) == Demand(load("chat")).take(3)
