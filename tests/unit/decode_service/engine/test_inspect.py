import dataclasses
import itertools
import json
from typing import Any

import pytest
import torch

from decode_service.engine.attention import TorchDecodeAttention
from decode_service.engine.inspect import PageTrace, churn, inspect_pages
from decode_service.engine.solo import PromptTensors
from shared.errors import ManifestError
from shared.model.transformer import Transformer
from shared.types.kv_manifest import LayoutSpec
from shared.types.methods import SparsityParams
from tests.reference.delta_slow import SlowDelta, SlowPrompt
from tests.support.decode_rows import (
    LAYOUT_MODES,
    WHOLE,
    layouts_of,
    make_cache,
    make_prompt,
    make_runner,
    place,
)
from tests.support.policies import POLICIES

DELTA = SparsityParams(full_layers=(0, 1, 3), page_budget=4, recency_pages=1)


def as_tensors(prompt: SlowPrompt) -> PromptTensors:
    layouts, layer_layouts = layouts_of(prompt)
    return PromptTensors(
        prompt_tokens=prompt.prompt_tokens,
        layouts=tuple(LayoutSpec(kind=x.kind, slots=x.slots) for x in layouts),
        layer_layouts=layer_layouts,
        positions={
            index: x.positions_RN for index, x in enumerate(layouts) if x.positions_RN is not None
        },
        keys_values=list(zip(prompt.keys, prompt.values, strict=True)),
    )


@pytest.mark.parametrize("mode", LAYOUT_MODES)
def test_it_reports_what_the_slow_twin_reads(tiny_model: Transformer, mode: str) -> None:
    prompt, _ = make_prompt(tiny_model, mode=mode, tokens=130, kept=90, seed=12)
    report = inspect_pages(
        tiny_model,
        attention=TorchDecodeAttention(),
        prompt=as_tensors(prompt),
        first_token=8,
        sparsity=DELTA,
        max_tokens=10,
    )
    slow = SlowDelta(tiny_model, prompt, (0, 1, 3), budget=4, recency=1)
    tokens = [8]
    with torch.inference_mode():
        for _ in range(9):
            tokens.append(int(slow.step(tokens[-1]).argmax()))
    assert report["token_ids"] == tokens
    assert [step["position"] for step in report["steps"]] == list(range(130, 139))
    assert [step["attended"] for step in report["steps"]] == slow.attended
    assert [step["dense"] for step in report["steps"]] == [6 * n for n in range(131, 140)]
    for step, pages_read in zip(report["steps"], slow.pages_read, strict=True):
        assert {layer: step["layers"][str(layer)] for layer in pages_read} == pages_read
        assert step["layers"]["0"] == list(range(9))
    assert json.loads(json.dumps(report)) == report


def inspected(model: Transformer, params: SparsityParams | None, *, steps: int) -> dict[str, Any]:
    """The report over a prompt whose layers hold different tokens."""
    prompt, _ = make_prompt(model, mode="layer", tokens=130, kept=90, seed=12)
    return inspect_pages(
        model,
        attention=TorchDecodeAttention(),
        prompt=as_tensors(prompt),
        first_token=8,
        sparsity=params,
        max_tokens=steps + 1,
    )


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_can_be_inspected(tiny_model: Transformer, name: str) -> None:
    report = inspected(tiny_model, POLICIES[name], steps=40)
    assert json.loads(json.dumps(report)) == report
    assert report["policy"] == POLICIES[name].policy
    assert len(report["roles"]) == 6
    shares = []
    for step in report["steps"]:
        read = 0
        for layer, units in step["layers"].items():
            length = step["position"] + 1 - (40 if int(layer) >= WHOLE else 0)
            rows = units if isinstance(units[0], list) else [units]
            unit = step["unit"][layer]
            counts = {sum(min(unit, length - unit * number) for number in row) for row in rows}
            assert len(counts) == 1, "heads read equally many slots"
            read += counts.pop()
        assert read == step["attended"]
        shares += step["churn"].values()
    assert shares
    assert all(0 <= share <= 1 for share in shares)


def test_heads_that_choose_apart_are_listed_apart(tiny_model: Transformer) -> None:
    steps = inspected(tiny_model, POLICIES["delta by KV head"], steps=2)["steps"]
    for step in steps:
        assert len(step["layers"]["2"]) == tiny_model.config.num_kv_heads
        assert [len(pages) for pages in step["layers"]["2"]] == [4, 4]
        assert step["layers"]["0"] == list(range(9))


def test_single_slots_say_so(tiny_model: Transformer) -> None:
    (step,) = inspected(tiny_model, POLICIES["tidal"], steps=1)["steps"]
    assert step["unit"]["0"] == 16
    assert step["unit"]["5"] == 1


def test_refreshes_are_marked_at_the_steps_that_choose(tiny_model: Transformer) -> None:
    every = inspected(tiny_model, POLICIES["delta"], steps=4)
    assert [step["refreshed"] for step in every["steps"]] == [[1, 3]] * 4
    third = inspected(tiny_model, POLICIES["delta every third step"], steps=7)
    assert [step["refreshed"] for step in third["steps"]] == [
        [1, 3] if index % 3 == 0 else [] for index in range(7)
    ]
    short = dataclasses.replace(DELTA, page_budget=100)
    assert inspected(tiny_model, short, steps=1)["steps"][0]["refreshed"] == []


def test_churn_is_what_a_choice_changed_since_the_step_before(tiny_model: Transformer) -> None:
    steps = inspected(tiny_model, POLICIES["random"], steps=3)["steps"]
    assert steps[0]["churn"] == {}
    for before, after in itertools.pairwise(steps):
        for layer, share in after["churn"].items():
            old, new = set(before["layers"][layer]), set(after["layers"][layer])
            assert share == pytest.approx(1 - len(old & new) / len(old | new))
    assert churn([[0, 1]], [[0, 1]]) == 0
    assert churn([[0, 1], [0, 1]], [[2, 3], [0, 1]]) == 0.5


def test_one_token_needs_no_step(tiny_model: Transformer) -> None:
    prompt, _ = make_prompt(tiny_model, mode="shared", tokens=30, kept=20)
    report = inspect_pages(
        tiny_model,
        attention=TorchDecodeAttention(),
        prompt=as_tensors(prompt),
        first_token=8,
        sparsity=None,
        max_tokens=1,
    )
    assert report == {"policy": "dense", "roles": ["full"] * 6, "token_ids": [8], "steps": []}


def test_contradicting_tensors_are_refused(tiny_model: Transformer) -> None:
    prompt, _ = make_prompt(tiny_model, mode="shared", tokens=30, kept=20)
    tensors = as_tensors(prompt)
    damaged = PromptTensors(
        prompt_tokens=tensors.prompt_tokens,
        layouts=tensors.layouts,
        layer_layouts=tensors.layer_layouts,
        positions={},
        keys_values=tensors.keys_values,
    )
    with pytest.raises(ManifestError):
        inspect_pages(
            tiny_model,
            attention=TorchDecodeAttention(),
            prompt=damaged,
            first_token=8,
            sparsity=None,
            max_tokens=2,
        )


def test_a_trace_watches_one_row_of_a_batch(tiny_model: Transformer) -> None:
    prompt, _ = make_prompt(tiny_model, mode="shared", tokens=70, kept=66)
    cache = make_cache(tiny_model)
    rows = [
        place(tiny_model, cache, prompt, first_token=3, sparsity=sparsity, max_tokens=8)
        for sparsity in (DELTA, None)
    ]
    trace = PageTrace(rows[0])
    make_runner(tiny_model, cache).step(rows, observer=trace)
    assert trace.pages[0] == [0, 1, 2, 3, 4]
    assert len(trace.pages[2]) == 4
