"""Every ranking method, by one suite."""

import pytest
import torch

from prefill_service.ranking.base import Observation, Ranker
from prefill_service.ranking.registry import build_ranker, ranker_registry
from prefill_service.ranking.select import cache_rows, select_positions
from shared.errors import ConfigError
from shared.types.methods import Aggregation, KvSelect, PruningParams

CASES = [(name, how) for name in ranker_registry().names() for how in Aggregation]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1].value}")
def ranker(request: pytest.FixtureRequest) -> Ranker:
    name, how = request.param
    return build_ranker(name, PruningParams(pruning_layer=5, aggregation=how))


def observation(length: int, *, seed: int = 0, window: int = 8) -> Observation:
    generator = torch.Generator().manual_seed(seed)
    window = min(window, length)
    return Observation(
        q_WHD=torch.randn((window, 6, 16), generator=generator),
        k_LGD=torch.randn((length, 2, 16), generator=generator),
    )


def layer_scores(ranker: Ranker, length: int) -> list[torch.Tensor]:
    return [ranker.score(observation(length, seed=seed)) for seed in range(4)]


def test_name_is_the_registered_one(ranker: Ranker) -> None:
    assert ranker.name in ranker_registry().names()
    params = PruningParams(pruning_layer=5)
    assert build_ranker(ranker.name, params).name == ranker.name


@pytest.mark.parametrize("length", [9, 10, 37, 200])
def test_shapes_and_types(ranker: Ranker, length: int) -> None:
    scores = layer_scores(ranker, length)
    assert all(s.shape == (2, length - 8) and s.dtype is torch.float32 for s in scores)
    pruning = ranker.aggregate(scores)
    assert pruning.shape == (length - 8,)
    assert pruning.dtype is torch.float32
    assert torch.isfinite(pruning).all()


def test_deterministic(ranker: Ranker) -> None:
    once, again = layer_scores(ranker, 60), layer_scores(ranker, 60)
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    assert torch.equal(ranker.aggregate(once), ranker.aggregate(again))


def test_inputs_are_left_alone(ranker: Ranker) -> None:
    seen = observation(60)
    ranker.score(seen)
    untouched = observation(60)
    assert torch.equal(seen.q_WHD, untouched.q_WHD)
    assert torch.equal(seen.k_LGD, untouched.k_LGD)
    scores = layer_scores(ranker, 60)
    ranker.aggregate(scores)
    assert all(torch.equal(a, b) for a, b in zip(scores, layer_scores(ranker, 60), strict=True))


@pytest.mark.parametrize("length", [1, 8, 9, 10, 100, 5000])
def test_budget(ranker: Ranker, length: int) -> None:
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
def test_own_cache_rows(ranker: Ranker, kv_select: KvSelect) -> None:
    scores_RC = cache_rows(ranker.score(observation(100)), kv_select)
    rows = select_positions(scores_RC, prompt_tokens=100, kept_tokens=20, protect_first=False)
    assert rows.shape == (2 if kv_select is KvSelect.HEAD else 1, 20)
    assert (rows.diff(dim=1) > 0).all()


def test_keep_all_keeps_all() -> None:
    for name in ranker_registry().names():
        ranker = build_ranker(name, PruningParams(pruning_layer=5, keep_rate=1.0))
        assert ranker.kept_count(77) == 77


def test_layers_end_at_the_pruning_layer(ranker: Ranker) -> None:
    assert all(0 <= layer <= 3 for layer in ranker.aggregated_layers(3))


def test_full_looks_at_nothing() -> None:
    full = build_ranker("full", PruningParams(pruning_layer=5, keep_rate=0.1))
    assert len(full.aggregated_layers(5)) == 0
    assert full.kept_count(1000) == 1000


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="claa"):
        build_ranker("cla", PruningParams(pruning_layer=5))
