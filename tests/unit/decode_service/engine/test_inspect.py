import json

import pytest
import torch

from decode_service.engine.attention import TorchDecodeAttention
from decode_service.engine.inspect import PageTrace, inspect_pages
from decode_service.engine.solo import PromptTensors
from shared.errors import ManifestError
from shared.model.transformer import Transformer
from shared.types.kv_manifest import LayoutSpec
from shared.types.methods import SparsityParams
from tests.reference.delta_slow import SlowDelta, SlowPrompt
from tests.support.decode_rows import (
    LAYOUT_MODES,
    layouts_of,
    make_cache,
    make_prompt,
    make_runner,
    place,
)

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
