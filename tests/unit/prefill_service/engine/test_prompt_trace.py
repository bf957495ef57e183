"""What a traced prompt says it kept, against what the run itself left behind."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from prefill_service.engine.capture import CapturedKv
from prefill_service.engine.plan import PromptPlan, plan_prompt
from prefill_service.engine.prompt_trace import TracedPrompt
from prefill_service.engine.runner import PrefillRunner
from shared.model.attention import TorchAttention
from shared.model.transformer import Transformer
from shared.types.methods import KvSelect, PruningParams
from shared.types.options import RequestOptions, TokenRange
from shared.types.trace import MAX_SPANS, PROMPT_COLUMNS, PromptTrace

PARAMS = PruningParams(
    pruning_layer=3, aggregation_window=2, deferred_layers=2, observation_window=4, keep_rate=0.25
)


def traced(
    model: Transformer, tokens: int, params: PruningParams, **options: object
) -> tuple[PromptTrace, CapturedKv, PromptPlan]:
    plan = plan_prompt(
        config=model.config,
        geometry=model.geometry(),
        params=params,
        options=RequestOptions(**options),  # type: ignore[arg-type]
        prompt_tokens=tokens,
    )
    captured = CapturedKv(plan)
    observer = TracedPrompt(captured)
    runner = PrefillRunner(model, attention=TorchAttention(), chunk_tokens=64)
    ids = torch.randint(3, 512, (tokens,), generator=torch.Generator().manual_seed(5)).tolist()
    output = runner.run(token_ids=ids, plan=plan, observer=observer, stop=lambda: False)
    return observer.trace(output.plan, scores_C=output.scores_C), captured, output.plan


@pytest.mark.parametrize("select", KvSelect)
@pytest.mark.parametrize("tokens", [90, 700])
def test_layouts_say_what_every_layer_holds(
    tiny_model: Transformer, select: KvSelect, tokens: int
) -> None:
    trace, captured, _ = traced(tiny_model, tokens, replace(PARAMS, kv_select=select))
    layers = [layer for layout in trace.layouts for layer in layout.layers]
    assert sorted(layers) == list(range(tiny_model.config.num_layers))
    columns = -(-tokens // trace.column_tokens)
    assert columns <= PROMPT_COLUMNS
    for layout in trace.layouts:
        for layer in layout.layers:
            rows = captured.layer_positions(layer).tolist()
            held = sorted({position for row in rows for position in row})
            assert layout.spans is not None
            assert [p for start, end in layout.spans for p in range(start, end)] == held
            assert all(end < start for (_, end), (start, _) in pairwise(layout.spans))
            assert layout.kept_tokens == len(rows[0])
            assert len(layout.share) == columns
            for column, share in enumerate(layout.share):
                first = column * trace.column_tokens
                last = min(first + trace.column_tokens, tokens)
                count = sum(first <= p < last for row in rows for p in row)
                assert share == pytest.approx(count / len(rows) / (last - first))


def test_short_prompts_have_a_column_a_token_and_scores_follow_the_choice(
    tiny_model: Transformer,
) -> None:
    trace, _, plan = traced(tiny_model, 90, PARAMS, protect=(TokenRange(10, 12),))
    assert trace.column_tokens == 1
    assert trace.score is not None
    (last,) = (each for each in trace.layouts if tiny_model.config.num_layers - 1 in each.layers)
    kept = {p for start, end in last.spans or () for p in range(start, end)}
    assert len(kept) == plan.summary.kept_tokens
    lowest_kept = min(trace.score[p] for p in kept)
    assert lowest_kept >= max(trace.score[p] for p in range(90) if p not in kept)
    assert [trace.score[p] for p in (0, 10, 11, 86, 89)] == [1.0] * 5


def test_a_prompt_that_was_not_pruned_is_one_layout_without_scores(
    tiny_model: Transformer,
) -> None:
    trace, _, _ = traced(tiny_model, 40, replace(PARAMS, keep_rate=1.0))
    assert trace.score is None
    assert len(trace.layouts) == 1
    assert trace.layouts[0].spans == ((0, 40),)
    assert trace.layouts[0].share == (1.0,) * 40


def test_spans_are_left_out_when_there_are_too_many(
    tiny_model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_SPANS >= 4096
    monkeypatch.setattr("prefill_service.engine.prompt_trace.MAX_SPANS", 3)
    trace, _, _ = traced(tiny_model, 90, PARAMS)
    assert all(layout.spans is None for layout in trace.layouts)
    assert all(layout.share for layout in trace.layouts)
