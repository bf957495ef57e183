"""Every ranking method that looks at layers of the main pass, by one suite."""

import pytest
import torch

from prefill_service.ranking.base import Observation, PromptRanker, Ranker, SideInputs, ranks_before
from prefill_service.ranking.registry import build_ranker, ranker_registry
from prefill_service.ranking.select import cache_rows, select_positions
from shared.errors import ConfigError
from shared.types.methods import Aggregation, KvSelect, PruningParams


def side_of(length: int) -> SideInputs:
    scores_L = torch.rand((length,), generator=torch.Generator().manual_seed(length))
    return SideInputs(oracle_L=scores_L)


def is_layer_method(name: str) -> bool:
    return isinstance(build_ranker(name, PruningParams(pruning_layer=5), side_of(9)), Ranker)


LAYER_METHODS = [name for name in ranker_registry().names() if is_layer_method(name)]
CASES = [
    (name, how)
    for name in LAYER_METHODS
    for how in (Aggregation if name == "claa" else [Aggregation.SUM_MAX])
]


class Case:
    """One method; an object of it for a prompt's length."""

    def __init__(self, name: str, aggregation: Aggregation) -> None:
        self.name = name
        self.params = PruningParams(pruning_layer=5, aggregation=aggregation)

    def ranker(self, length: int) -> Ranker:
        built = build_ranker(self.name, self.params, side_of(length))
        assert isinstance(built, Ranker)
        assert not isinstance(built, PromptRanker)
        return built


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1].value}")
def case(request: pytest.FixtureRequest) -> Case:
    return Case(*request.param)


def observation(length: int, *, seed: int = 0, window: int = 8) -> Observation:
    generator = torch.Generator().manual_seed(seed)
    window = min(window, length)
    return Observation(
        q_WHD=torch.randn((window, 6, 16), generator=generator),
        k_LGD=torch.randn((length, 2, 16), generator=generator),
    )


def layer_scores(ranker: Ranker, length: int) -> list[torch.Tensor]:
    layers = ranker.aggregated_layers(5) or range(1)
    return [ranker.score(observation(length, seed=layer)) for layer in layers]


def test_name_is_the_registered_one(case: Case) -> None:
    assert case.ranker(50).name == case.name


@pytest.mark.parametrize("length", [9, 10, 37, 200])
def test_shapes_and_types(case: Case, length: int) -> None:
    ranker = case.ranker(length)
    scores = layer_scores(ranker, length)
    assert all(s.shape == (2, length - 8) and s.dtype is torch.float32 for s in scores)
    pruning = ranker.aggregate(scores)
    assert pruning.shape == (length - 8,)
    assert pruning.dtype is torch.float32
    assert torch.isfinite(pruning).all()


def test_deterministic(case: Case) -> None:
    one, other = case.ranker(60), case.ranker(60)
    once, again = layer_scores(one, 60), layer_scores(other, 60)
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    assert torch.equal(one.aggregate(once), other.aggregate(again))


def test_inputs_are_left_alone(case: Case) -> None:
    ranker, seen = case.ranker(60), observation(60)
    ranker.score(seen)
    untouched = observation(60)
    assert torch.equal(seen.q_WHD, untouched.q_WHD)
    assert torch.equal(seen.k_LGD, untouched.k_LGD)
    scores = layer_scores(ranker, 60)
    ranker.aggregate(scores)
    assert all(torch.equal(a, b) for a, b in zip(scores, layer_scores(ranker, 60), strict=True))


@pytest.mark.parametrize("length", [1, 8, 9, 10, 100, 5000])
def test_budget(case: Case, length: int) -> None:
    ranker = case.ranker(length)
    kept = ranker.kept_count(length)
    assert 1 <= kept <= length
    scores = ranker.aggregate(layer_scores(ranker, length))
    rows = select_positions(
        scores[None], prompt_tokens=length, kept_tokens=kept, protect_first=True
    )
    assert rows.shape == (1, kept)
    assert rows[0, 0] == 0
    assert rows[0, -1] == length - 1


@pytest.mark.parametrize("kv_select", [KvSelect.HEAD, KvSelect.LAYER])
def test_own_cache_rows(case: Case, kv_select: KvSelect) -> None:
    scores_RC = cache_rows(case.ranker(100).score(observation(100)), kv_select)
    rows = select_positions(scores_RC, prompt_tokens=100, kept_tokens=20, protect_first=False)
    assert rows.shape == (2 if kv_select is KvSelect.HEAD else 1, 20)
    assert (rows.diff(dim=1) > 0).all()


def test_layers_end_at_the_pruning_layer(case: Case) -> None:
    assert all(0 <= layer <= 3 for layer in case.ranker(50).aggregated_layers(3))


@pytest.mark.parametrize("name", ranker_registry().names())
def test_settling_twice_is_settling_once(name: str) -> None:
    params = PruningParams(
        pruning_layer=3, kv_rate=0.1, deferred_layers=2, kv_select=KvSelect.LAYER, ranker=name
    )
    once = build_ranker(name, params, side_of(50)).settled(6)
    assert build_ranker(name, once, side_of(50)).settled(6) == once
    assert once.ranker == name


@pytest.mark.parametrize("name", ranker_registry().names())
def test_a_method_ranks_in_one_of_two_ways(name: str) -> None:
    built = build_ranker(name, PruningParams(pruning_layer=5), side_of(9))
    assert ranks_before(built) == isinstance(built, PromptRanker) != isinstance(built, Ranker)


@pytest.mark.parametrize("name", ranker_registry().names())
def test_keep_all_keeps_all(name: str) -> None:
    ranker = build_ranker(name, PruningParams(pruning_layer=5, keep_rate=1.0), side_of(77))
    assert ranker.kept_count(77) == 77


def test_full_looks_at_nothing() -> None:
    full = Case("full", Aggregation.SUM_MAX).ranker(50)
    assert len(full.aggregated_layers(5)) == 0
    assert full.kept_count(1000) == 1000


def test_one_choice_serves_every_layer_of_methods_that_score_all_alike() -> None:
    for name in ("oracle", "random", "recency"):
        ranker = Case(name, Aggregation.SUM_MAX).ranker(60)
        first, second = (ranker.score(observation(60, seed=seed)) for seed in (1, 2))
        assert torch.equal(first, second)
        assert torch.equal(first[0], first[1])
        assert ranker.settled(6).kv_select is KvSelect.SHARED


def test_random_follows_its_seed() -> None:
    def scores(seed: int) -> torch.Tensor:
        built = build_ranker("random", PruningParams(pruning_layer=5, seed=seed))
        assert isinstance(built, Ranker)
        return built.score(observation(60))[0]

    assert torch.equal(scores(3), scores(3))
    assert not torch.equal(scores(3), scores(4))
    assert sorted(scores(3).tolist()) == list(range(52))


def test_recency_prefers_the_end() -> None:
    ranker = Case("recency", Aggregation.SUM_MAX).ranker(60)
    assert ranker.aggregate(layer_scores(ranker, 60)).tolist() == list(range(52))


def test_oracle_needs_scores_of_this_prompt() -> None:
    params = PruningParams(pruning_layer=5)
    with pytest.raises(ConfigError, match="needs a score"):
        build_ranker("oracle", params)
    wrong = build_ranker("oracle", params, side_of(59))
    assert isinstance(wrong, Ranker)
    with pytest.raises(ConfigError, match="another prompt"):
        wrong.score(observation(60))


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="claa"):
        build_ranker("cla", PruningParams(pruning_layer=5))
