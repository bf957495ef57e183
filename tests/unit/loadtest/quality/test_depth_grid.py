"""The grid's shortcut gives what each candidate's own ranker and selection give."""

from dataclasses import replace

import pytest
import torch

from loadtest.quality.correlation import spearman
from loadtest.quality.depth_grid import SweepGrid, mean_scores, score_grid, sliding_max
from loadtest.quality.oracle import AskedPrompt, OracleSwitches, ask_prompt, oracle_scores
from loadtest.quality.tasks.sample import Span
from prefill_service.engine.evaluate import rank_and_prefill
from prefill_service.ranking.claa import ClaaRanker
from shared.model.attention import TorchAttention
from shared.model.transformer import Transformer
from shared.types.methods import Aggregation, PruningParams

PARAMS = PruningParams(pruning_layer=3, keep_rate=0.3)
GRID = SweepGrid(windows=(4, 9), pools=(3, 7), layer_counts=(1, 3))
IDS = [(7 * i + i * i) % 500 for i in range(80)]
NEEDLES = (Span(20, 26), Span(40, 43))


@pytest.fixture(scope="module")
def asked(tiny_model: Transformer) -> AskedPrompt:
    full = rank_and_prefill(
        tiny_model,
        attention=TorchAttention(),
        token_ids=IDS,
        params=replace(PARAMS, keep_rate=1.0),
    )
    return ask_prompt(tiny_model, full, token_ids=IDS, answer_ids=[5, 6], window=9)


@pytest.mark.parametrize("form", list(Aggregation))
@pytest.mark.parametrize("place", [(0, 0, 0), (1, 1, 1), (0, 1, 1), (1, 0, 1)])
def test_every_candidate_is_scored_as_its_method_would(
    asked: AskedPrompt, form: Aggregation, place: tuple[int, int, int]
) -> None:
    oracle_L = oracle_scores(asked, OracleSwitches())
    found = score_grid(asked, oracle_L, needles=NEEDLES, grid=GRID, params=PARAMS)
    w, p, m = place
    a = GRID.aggregations.index(form)
    for depth in range(len(asked.keys)):
        params = replace(
            PARAMS,
            observation_window=GRID.windows[w],
            pool_kernel=GRID.pools[p],
            aggregation=form,
            aggregation_window=GRID.layer_counts[m],
        )
        ranker = ClaaRanker(params)
        layers = ranker.aggregated_layers(depth)
        score_C = ranker.aggregate(
            [ranker.score(asked.observation(layer, window=GRID.windows[w])) for layer in layers]
        )
        rho = float(spearman(score_C, oracle_L[: score_C.shape[0]]))
        assert float(found.rho_WPAMY[w, p, a, m, depth]) == pytest.approx(rho, abs=1e-9)
        assert found.coverage_WPAMY is not None
        assert float(found.coverage_WPAMY[w, p, a, m, depth]) == kept_share(score_C, params)


def kept_share(score_C: torch.Tensor, params: PruningParams) -> float:
    """Slow twin of coverage: the best of the candidates, token 0 first, and the window."""
    order = sorted(range(len(score_C)), key=lambda i: (i != 0, -float(score_C[i]), i))
    budget = params.kept_count(len(IDS)) - params.observation_window
    kept = {*order[:budget], *range(len(score_C), len(IDS))}
    needle = [i for start, stop in NEEDLES for i in range(start, stop)]
    return sum(i in kept for i in needle) / len(needle)


def test_sliding_max_looks_back_only() -> None:
    single_YC = torch.tensor([[3.0], [1.0], [2.0], [0.0]])
    assert sliding_max(single_YC, 2).flatten().tolist() == [3.0, 3.0, 2.0, 2.0]
    assert sliding_max(single_YC, 9).flatten().tolist() == [3.0] * 4
    assert single_YC.flatten().tolist() == [3.0, 1.0, 2.0, 0.0]


def test_coverage_is_averaged_over_prompts_that_have_needles(asked: AskedPrompt) -> None:
    oracle_L = oracle_scores(asked, OracleSwitches())
    with_needle = score_grid(asked, oracle_L, needles=NEEDLES, grid=GRID, params=PARAMS)
    without = score_grid(asked, oracle_L, needles=(), grid=GRID, params=PARAMS)
    assert without.coverage_WPAMY is None
    both = mean_scores([with_needle, without])
    assert both.coverage_WPAMY is not None
    assert torch.equal(both.coverage_WPAMY, with_needle.coverage_WPAMY)  # type: ignore[arg-type]
    assert torch.allclose(both.rho_WPAMY, with_needle.rho_WPAMY)
    assert mean_scores([without]).coverage_WPAMY is None
