"""Closeness of sets of full layers to dense decode, on the tiny model."""

from dataclasses import replace

import pytest

from loadtest.calibration.delta_measure import measure_sets
from loadtest.calibration.delta_samples import DeltaSample
from shared.model.transformer import Transformer
from shared.types.methods import SparsityParams

PARAMS = SparsityParams(full_layers=(0, 1, 2), page_budget=4, recency_pages=1)
IDS = tuple((7 * i) % 61 + 5 for i in range(300))
LONG = DeltaSample(name="prose", prompt_ids=IDS[:250], tail_ids=IDS[250:262])
SETS = [(0, 1, 2), (0, 1, 2, 4), (0, 1, 2, 3, 4, 5)]


def measured(
    model: Transformer, samples: list[DeltaSample], params: SparsityParams = PARAMS
) -> list[tuple[float, float]]:
    done: list[int] = []
    found = measure_sets(model, samples, SETS, params=params, steps=8, progress=done.append)
    assert done == list(range(1, len(samples) + 1))
    return [(one.kl, one.agreement) for one in found]


def test_layers_that_all_read_everything_are_dense(tiny_model: Transformer) -> None:
    one_delta, _, everything = measured(tiny_model, [LONG])
    assert everything[0] == pytest.approx(0.0, abs=1e-9)
    assert everything[1] == 1.0
    assert one_delta[0] > 1e-4


def test_a_budget_of_all_pages_is_dense_whatever_policy_the_profile_names(
    tiny_model: Transformer,
) -> None:
    params = replace(PARAMS, page_budget=17, policy="random")
    for kl, agreement in measured(tiny_model, [LONG], params):
        assert kl == pytest.approx(0.0, abs=1e-9)
        assert agreement == 1.0


def test_samples_count_alike_and_one_without_a_second_token_not_at_all(
    tiny_model: Transformer,
) -> None:
    other = replace(LONG, prompt_ids=IDS[40:290], tail_ids=IDS[290:294])
    short = replace(LONG, tail_ids=IDS[250:251])
    (first, *_), (second, *_) = measured(tiny_model, [LONG]), measured(tiny_model, [other])
    both, *_ = measured(tiny_model, [LONG, short, other])
    assert both[0] == pytest.approx((first[0] + second[0]) / 2)
    assert measured(tiny_model, [short]) == []
