"""Streaming and the controls: who reads everything, what is forced, what a draw depends on."""

from collections.abc import Callable

import pytest
import torch

from decode_service.sparsity.base import Evidence, LayerRole, PagePolicy, Selection
from decode_service.sparsity.oracle_topk import OracleTopkPolicy, true_page_scores
from decode_service.sparsity.random import RandomPolicy
from decode_service.sparsity.recency import RecencyPolicy
from decode_service.sparsity.streaming import StreamingPolicy
from shared.errors import ConfigError
from shared.types.methods import SparsityParams
from tests.support.sparse_steps import draw_inputs, mixed_facts, plain_facts, run_step

LAYERS = 6
BUDGET = 8
CONTROLS: dict[str, Callable[..., PagePolicy]] = {
    "streaming": StreamingPolicy,
    "recency": RecencyPolicy,
    "random": RandomPolicy,
    "oracle_topk": OracleTopkPolicy,
}
F, S = LayerRole.FULL, LayerRole.SPARSE


def params(*, seed: int = 0, full_layers: tuple[int, ...] = (0, 1, 4)) -> SparsityParams:
    return SparsityParams(full_layers=full_layers, page_budget=BUDGET, recency_pages=3, seed=seed)


def make(name: str, *, seed: int = 0) -> PagePolicy:
    return CONTROLS[name](params(seed=seed), num_layers=LAYERS)


def pages(selection: Selection | None) -> list[int]:
    assert selection is not None
    (row,) = selection.units_RU.tolist()
    return [int(page) for page in row]


def drawn(*, seed: int = 0, generated: int = 1, prompt: int = 799) -> list[list[int]]:
    """Pages of the sparse layers of a step of the random policy."""
    facts = plain_facts(prompt, num_layers=LAYERS)
    row = make("random", seed=seed).begin(facts)
    inputs = draw_inputs(facts, generated=generated, seed=3)
    done = run_step(row, inputs, generated=generated)
    return [pages(selection) for selection in done.selections if selection is not None]


@pytest.mark.parametrize("name", ["recency", "random", "oracle_topk"])
def test_full_layers_are_those_of_delta_and_the_others_read_a_choice(name: str) -> None:
    row = make(name).begin(plain_facts(400, num_layers=LAYERS))
    assert row.roles == (F, F, S, S, F, S)


def test_streaming_has_no_full_layer_whatever_f_says() -> None:
    row = make("streaming").begin(plain_facts(400, num_layers=LAYERS))
    assert row.roles == (S,) * LAYERS


@pytest.mark.parametrize("build", [RecencyPolicy, RandomPolicy, OracleTopkPolicy])
def test_full_layers_of_another_model_are_refused(
    build: type[RecencyPolicy | RandomPolicy | OracleTopkPolicy],
) -> None:
    with pytest.raises(ConfigError, match="layer 22 of a model of 12"):
        build(params(full_layers=(0, 22)), num_layers=12)


@pytest.mark.parametrize("name", ["streaming", "recency", "random"])
def test_choices_without_attention_read_no_key(name: str) -> None:
    facts = plain_facts(400, num_layers=LAYERS)
    inputs = draw_inputs(facts, generated=1, seed=0)
    run_step(make(name).begin(facts), inputs, generated=1)
    assert [kv.asked for kv in inputs.kvs] == [[]] * LAYERS


def test_the_oracle_reads_keys_in_sparse_layers_above_the_budget_alone() -> None:
    facts = mixed_facts(400, slots=100, num_layers=LAYERS)
    inputs = draw_inputs(facts, generated=1, seed=0)
    row = make("oracle_topk").begin(facts)
    assert run_step(row, inputs, generated=1).selections[5] is None
    assert [len(kv.asked) for kv in inputs.kvs] == [0, 0, 1, 1, 0, 0]


@pytest.mark.parametrize("name", CONTROLS)
def test_nobody_asks_for_evidence_and_none_is_taken(name: str) -> None:
    step = make(name).begin(plain_facts(400, num_layers=LAYERS)).step(generated=1)
    assert [step.evidence(layer) for layer in range(LAYERS)] == [Evidence.NONE] * LAYERS
    with pytest.raises(AssertionError, match="layer 2"):
        step.observe(2, torch.zeros(2, 401))


@pytest.mark.parametrize("name", CONTROLS)
@pytest.mark.parametrize("prompt", [100, 16 * BUDGET - 1])
def test_within_the_budget_every_slot_is_read_and_by_force_too(name: str, prompt: int) -> None:
    facts = plain_facts(prompt, num_layers=LAYERS)
    inputs = draw_inputs(facts, generated=1, seed=0)
    assert run_step(make(name).begin(facts), inputs, generated=1).selections == [None] * LAYERS
    row = make(name).begin(facts, force=True)
    for role, selection in zip(
        row.roles, run_step(row, inputs, generated=1).selections, strict=True
    ):
        if role is F:
            assert selection is None
            continue
        assert pages(selection) == list(range(-(-(prompt + 1) // 16)))
        assert selection is not None
        assert selection.visible == prompt + 1


def test_random_reads_the_forced_pages_of_delta_and_as_many_others_as_fit() -> None:
    for chosen in drawn():
        assert chosen == sorted(set(chosen))
        assert len(chosen) == BUDGET
        assert chosen[0] == 0
        assert chosen[-3:] == [47, 48, 49]


def test_a_repeated_step_draws_the_same_pages() -> None:
    assert drawn(seed=4, generated=9) == drawn(seed=4, generated=9)


def test_seeds_steps_and_layers_draw_apart() -> None:
    steps = [drawn(seed=seed, generated=g) for seed in (0, 1) for g in (1, 2, 3)]
    draws = [tuple(layer) for step in steps for layer in step]
    assert len(set(draws)) == len(draws) == 18


def test_every_free_page_is_drawn_equally_often() -> None:
    times = [0] * 50
    for generated in range(1, 401):
        # 50 pages at every step, whatever was generated.
        for chosen in drawn(generated=generated, prompt=800 - generated):
            for page in chosen:
                times[page] += 1
    expected = 1200 * 4 / 46
    assert [times[page] for page in (0, 47, 48, 49)] == [1200] * 4
    assert sum(times[1:47]) == 1200 * 4
    # Five standard deviations of a binomial count.
    assert all(abs(count - expected) < 5 * expected**0.5 for count in times[1:47])


def test_true_scores_sum_the_best_heads_share_over_each_page() -> None:
    q_HD = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    k_TGD = torch.zeros(18, 1, 2)
    k_TGD[3, 0] = torch.tensor([60.0, 0.0])
    k_TGD[17, 0] = torch.tensor([0.0, 60.0])
    scores_P = true_page_scores(q_HD, k_TGD)
    assert torch.allclose(scores_P, torch.ones(2))
