import pytest

from loadtest.quality.arms import ablation_arms, full_arm, profile_arms, ranker_arms, ranker_names
from prefill_service.ranking.registry import ranker_registry
from shared.errors import ConfigError
from shared.types.methods import PruningParams

BASE = PruningParams(pruning_layer=17, min_keep=256, bypass_below=512)


def test_every_registered_method_is_an_arm():
    assert set(ranker_registry().names()) < set(ranker_names())


def test_controls_always_run_and_full_is_an_arm_of_its_own():
    arms = ranker_arms(BASE, names=["claa", "full"], rates=[0.1, 0.4])
    assert [(arm.name, arm.rate) for arm in arms] == [
        ("claa", 0.1), ("claa", 0.4), ("random", 0.1), ("random", 0.4),
        ("recency", 0.1), ("recency", 0.4),
    ]  # fmt: skip
    assert full_arm(BASE).params.kept_count(999) == 999


def test_arms_keep_the_plain_rate_at_every_length():
    arms = ranker_arms(BASE, names=ranker_names(), rates=[0.1])
    assert {arm.params.kept_count(1000) for arm in arms} == {100}


def test_the_oracle_is_there_with_no_whole_layer_and_with_the_profiles():
    arms = {arm.name: arm for arm in ranker_arms(BASE, names=ranker_names(), rates=[0.2])}
    assert arms["oracle"].params.deferred_layers == 0
    assert arms["oracle-deferred"].params.deferred_layers == BASE.deferred_layers
    assert {name for name, arm in arms.items() if arm.needs_oracle} == {"oracle", "oracle-deferred"}


@pytest.mark.parametrize("rates", [[], [0.0], [1.0], [1.2]])
def test_rates_that_prune_nothing_or_all_are_refused(rates):
    with pytest.raises(ConfigError, match="keep rates"):
        ranker_arms(BASE, names=["claa"], rates=rates)


def test_an_unknown_method_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"'clah'.*claa"):
        ranker_arms(BASE, names=["clah"], rates=[0.2])


def test_the_served_profile_comes_with_other_floors():
    arms = profile_arms(BASE, floors=[128, 256])
    assert [arm.name for arm in arms] == ["claa+floor=256", "claa+floor=128"]
    assert arms[0].params == BASE
    assert arms[1].params.kept_count(1000) == 200


def test_ablations_change_one_parameter_and_contain_the_profiles_own_value():
    arms = {arm.name: arm.params for arm in ablation_arms(BASE, num_layers=30)}
    for label, field in (
        ("lp", "pruning_layer"), ("n", "aggregation_window"), ("m", "deferred_layers"),
        ("W", "observation_window"), ("keep", "keep_rate"), ("pool", "pool_kernel"),
    ):  # fmt: skip
        own = arms[f"{label}={getattr(BASE, field)}"]
        assert own == arms["agg=rank_max"] == arms["kv=shared"]
        assert len([name for name in arms if name.startswith(f"{label}=")]) >= 4
    assert {arms[name].pruning_layer for name in arms if name.startswith("lp=")} >= {16, 17, 18}


def test_ablations_fit_a_shallow_model():
    shallow = PruningParams(pruning_layer=2, aggregation_window=3, deferred_layers=1)
    for arm in ablation_arms(shallow, num_layers=6):
        assert arm.params.pruning_layer < 6
        assert arm.params.deferred_layers < 6
        assert arm.params.aggregation_window <= arm.params.pruning_layer + 1
