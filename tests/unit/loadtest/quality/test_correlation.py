"""Spearman's rho by hand, and the layers of a prompt against an oracle."""

import math

import pytest
import torch

from loadtest.quality.correlation import (
    agreement,
    average_ranks,
    layer_correlation,
    spearman,
)
from loadtest.quality.oracle import AskedPrompt
from prefill_service.ranking.window_attention import window_scores
from shared.types.methods import Aggregation, PruningParams

PARAMS = PruningParams(pruning_layer=2, aggregation_window=2, observation_window=4)


def naive_rho(first: list[float], second: list[float]) -> float:
    """Counts and sums in plain Python."""

    def ranks(values: list[float]) -> list[float]:
        return [
            sum(other < value for other in values)
            + (sum(other == value for other in values) - 1) / 2
            for value in values
        ]

    a, b = ranks(first), ranks(second)
    mean = (len(a) - 1) / 2
    cross = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    scale = math.sqrt(sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b))
    return cross / scale if scale else 0.0


def asked(tokens: int, *, layers: int = 3, window: int = 6) -> AskedPrompt:
    generator = torch.Generator().manual_seed(tokens)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    return AskedPrompt(
        keys=[draw(tokens, 2, 8) for _ in range(layers)],
        window_queries=[draw(window, 4, 8) for _ in range(layers)],
        answer_queries=[draw(3, 4, 8) for _ in range(layers)],
    )


def test_equal_values_share_their_mean_rank():
    ranks = average_ranks(torch.tensor([5.0, 1.0, 5.0, 3.0, 5.0]))
    assert ranks.tolist() == [3.0, 0.0, 3.0, 1.0, 3.0]


@pytest.mark.parametrize("levels", [3, 50, 10_000])
def test_rho_equals_the_count_in_plain_python(levels):
    a_XN = torch.randint(0, levels, (4, 60)).float()
    b_N = torch.randint(0, levels, (60,)).float()
    expected = [naive_rho(row, b_N.tolist()) for row in a_XN.tolist()]
    assert spearman(a_XN, b_N).tolist() == pytest.approx(expected, abs=1e-12)


def test_rho_sees_order_only():
    values_N = torch.rand(100)
    assert float(spearman(values_N, values_N.exp())) == pytest.approx(1.0)
    assert float(spearman(values_N, -(values_N**3))) == pytest.approx(-1.0)


@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_what_orders_nothing_agrees_with_nothing(tokens):
    assert float(spearman(torch.ones(tokens), torch.arange(float(tokens)))) == 0.0


def test_agreement_leaves_out_forced_and_unranked_positions():
    oracle_L = torch.tensor([0.1, 0.9, 0.3, 0.2, 9.0, 9.0])
    score_C = torch.tensor([float("inf"), 3.0, 2.0, 1.0])
    assert agreement(score_C, oracle_L) == pytest.approx(1.0)
    assert agreement(-score_C, oracle_L) == pytest.approx(-1.0)


def test_single_layers_and_windows_of_layers_are_ranked_as_the_method_does():
    prompt, oracle_L = asked(50), torch.rand(50)
    found = layer_correlation(prompt, oracle_L, params=PARAMS)
    scores = [
        window_scores(prompt.window_queries[i][-4:], prompt.keys[i], pool_kernel=7)
        for i in range(3)
    ]
    sums = [scores_GC.sum(0) for scores_GC in scores]
    assert found.aggregation_window == 2
    assert found.single == pytest.approx([float(spearman(s, oracle_L[:46])) for s in sums])
    combined = torch.maximum(sums[1], sums[2])
    assert found.aggregated[Aggregation.SUM_MAX][2] == pytest.approx(
        float(spearman(combined, oracle_L[:46]))
    )
    # One layer has nothing to be combined with.
    assert found.aggregated[Aggregation.SUM_MAX][0] == pytest.approx(found.single[0])
    assert found.aggregated[Aggregation.RANK_MAX][0] == pytest.approx(found.single[0])


def test_an_oracle_that_is_one_layers_ranking_agrees_with_it_fully():
    prompt = asked(40)
    scores_GC = window_scores(prompt.window_queries[1][-4:], prompt.keys[1], pool_kernel=7)
    oracle_L = torch.cat((scores_GC.sum(0), torch.zeros(4)))
    found = layer_correlation(prompt, oracle_L, params=PARAMS, aggregations=[])
    assert found.single[1] == pytest.approx(1.0)
    assert found.aggregated == {}
