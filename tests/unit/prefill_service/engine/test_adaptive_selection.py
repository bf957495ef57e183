"""Protected tokens, the request's window and a kept count by mass, through the forward pass."""

from dataclasses import replace

import pytest
import torch

from prefill_service.engine.capture import CapturedKv
from prefill_service.engine.evaluate import rank_and_prefill
from prefill_service.engine.plan import PromptPlan, plan_prompt
from prefill_service.engine.runner import PrefillOutput, PrefillRunner
from shared.errors import ConfigError
from shared.model.attention import TorchAttention
from shared.model.transformer import Transformer
from shared.types.methods import Aggregation, KvSelect, PruningParams
from shared.types.options import RequestOptions, TokenRange

TOKENS = 120
PARAMS = PruningParams(pruning_layer=3, deferred_layers=2, keep_rate=0.25)
IDS = [(7 * i + i * i) % 512 for i in range(TOKENS)]


def run(
    model: Transformer,
    params: PruningParams,
    options: RequestOptions,
    *,
    chunk: int = 32,
    earlier: int = 0,
) -> tuple[PromptPlan, PrefillOutput, CapturedKv]:
    """The plan as it was made, and what came of it."""
    plan = plan_prompt(
        config=model.config,
        geometry=model.geometry(),
        params=params,
        options=options,
        prompt_tokens=TOKENS,
        earlier_tokens=earlier,
    )
    captured = CapturedKv(plan)
    output = PrefillRunner(model, attention=TorchAttention(), chunk_tokens=chunk).run(
        token_ids=IDS, plan=plan, observer=captured, stop=lambda: False
    )
    return plan, output, captured


@pytest.mark.parametrize("kv_select", list(KvSelect), ids=lambda mode: mode.value)
def test_protected_tokens_are_in_every_set(tiny_model: Transformer, kv_select: KvSelect) -> None:
    params = replace(PARAMS, kv_select=kv_select)
    options = RequestOptions(protect=(TokenRange(40, 50), TokenRange(60, 62)))
    plan, output, captured = run(tiny_model, params, options)
    wanted = {*range(40, 50), 60, 61}
    assert wanted <= set(output.kept_N.tolist())
    assert len(output.kept_N) == plan.summary.kept_tokens == 30
    assert output.plan is plan
    for layer in range(2, 6):
        for row in captured.layer_positions(layer).tolist():
            assert wanted <= set(row)


def test_a_wider_window_is_kept_and_scores_otherwise(tiny_model: Transformer) -> None:
    _, narrow, _ = run(tiny_model, PARAMS, RequestOptions())
    _, wide, _ = run(tiny_model, PARAMS, RequestOptions(observation_window=20))
    assert set(range(100, 120)) <= set(wide.kept_N.tolist())
    assert set(narrow.kept_N.tolist()) != set(wide.kept_N.tolist())


@pytest.mark.parametrize("kv_select", list(KvSelect), ids=lambda mode: mode.value)
@pytest.mark.parametrize("aggregation", list(Aggregation), ids=lambda how: how.value)
def test_a_mass_equals_the_rate_that_it_comes_to(
    tiny_model: Transformer, kv_select: KvSelect, aggregation: Aggregation
) -> None:
    params = replace(PARAMS, kv_select=kv_select, aggregation=aggregation)
    options = RequestOptions(mass=0.5, min_rate=0.1, max_rate=0.9, protect=(TokenRange(0, 3),))
    planned, ours, captured = run(tiny_model, params, options)
    kept = ours.plan.summary.kept_tokens
    assert 12 < kept < planned.summary.kept_tokens == 108
    assert ours.plan.slab.total_bytes < planned.slab.total_bytes
    same = RequestOptions(min_keep=kept, keep_rate=0.01, protect=(TokenRange(0, 3),))
    plan, theirs, expected = run(tiny_model, params, same)
    assert plan.slab == ours.plan.slab
    assert torch.equal(ours.kept_N, theirs.kept_N)
    assert torch.equal(ours.logits_V, theirs.logits_V)
    for layer in range(6):
        assert torch.equal(captured.layer_positions(layer), expected.layer_positions(layer))
        for a, b in zip(captured.layer(layer), expected.layer(layer), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("ranker", ["claa", "fastkv"])
def test_the_evaluated_mass_is_the_served_one(tiny_model: Transformer, ranker: str) -> None:
    params = replace(
        PARAMS,
        ranker=ranker,
        mass=0.5,
        min_rate=0.05,
        max_rate=0.9,
        deferred_layers=0,
        kv_select=KvSelect.HEAD,
    )
    _, served, captured = run(tiny_model, params, RequestOptions())
    ours = rank_and_prefill(tiny_model, attention=TorchAttention(), token_ids=IDS, params=params)
    assert torch.equal(ours.kept_N, served.kept_N)
    assert torch.allclose(ours.logits_V, served.logits_V, atol=1e-4)
    for layer, cache in enumerate(ours.layer_kv):
        assert torch.equal(cache.positions_RN, captured.layer_positions(layer))


def test_an_evaluated_mass_needs_scores_of_layers(tiny_model: Transformer) -> None:
    params = replace(PARAMS, ranker="gemfilter", mass=0.5)
    with pytest.raises(ConfigError, match="gemfilter"):
        rank_and_prefill(tiny_model, attention=TorchAttention(), token_ids=IDS, params=params)


@pytest.mark.parametrize(("mass", "bound"), [(1e-6, 0.2), (1.0, 0.4)])
def test_bounds_hold(tiny_model: Transformer, mass: float, bound: float) -> None:
    options = RequestOptions(mass=mass, min_rate=0.2, max_rate=0.4)
    _, output, _ = run(tiny_model, PARAMS, options)
    assert len(output.kept_N) == output.plan.summary.kept_tokens == bound * TOKENS


def test_more_mass_keeps_more_and_blocks_do_not_matter(tiny_model: Transformer) -> None:
    counts = []
    for mass in (0.2, 0.5, 0.8):
        options = RequestOptions(mass=mass, min_rate=0.01, max_rate=1.0)
        counts.append(len(run(tiny_model, PARAMS, options)[1].kept_N))
        assert len(run(tiny_model, PARAMS, options, chunk=1024)[1].kept_N) == counts[-1]
    assert counts == sorted(set(counts))


@pytest.mark.parametrize("earlier", [3, 30, 90])
@pytest.mark.parametrize(
    "options",
    [RequestOptions(), RequestOptions(mass=0.5, min_rate=0.2, max_rate=0.3)],
    ids=["rate", "mass"],
)
@pytest.mark.parametrize("kv_select", list(KvSelect), ids=lambda mode: mode.value)
def test_an_answer_so_far_is_in_every_set(
    tiny_model: Transformer, kv_select: KvSelect, options: RequestOptions, earlier: int
) -> None:
    """Also where the whole count is far above what the bounds would allow a prompt."""
    params = replace(PARAMS, kv_select=kv_select)
    _, output, captured = run(tiny_model, params, options, earlier=earlier)
    answer, prompt_tokens = set(range(TOKENS - earlier, TOKENS)), TOKENS - earlier
    kept_of_prompt = output.plan.summary.kept_tokens - earlier
    assert kept_of_prompt <= max(0.3 * prompt_tokens, params.observation_window + 1)
    assert len(output.kept_N) == output.plan.summary.kept_tokens
    assert answer <= set(output.kept_N.tolist())
    for layer in range(2, 6):
        for row in captured.layer_positions(layer).tolist():
            assert answer <= set(row)
