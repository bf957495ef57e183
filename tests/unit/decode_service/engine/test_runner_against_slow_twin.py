"""The paged batch runner against the slow twin of DELTA, in every layout and at every page edge."""

import pytest
import torch

from shared.model.transformer import Transformer
from shared.types.methods import SparsityParams
from tests.reference.delta_slow import SlowDelta, SlowPrompt
from tests.support.decode_rows import (
    LAYOUT_MODES,
    advance,
    make_cache,
    make_prompt,
    make_runner,
    place,
)

DELTAS = {
    "front and rest": SparsityParams(full_layers=(0, 1, 3), page_budget=4, recency_pages=1),
    "only in front": SparsityParams(full_layers=(0,), page_budget=4, recency_pages=2),
    "in the middle": SparsityParams(full_layers=(0, 2, 4), page_budget=5, recency_pages=1),
}


def compare(
    model: Transformer, prompt: SlowPrompt, sparsity: SparsityParams | None, *, steps: int
) -> None:
    """Steps both and asserts equal logits and equal slots read."""
    cache = make_cache(model)
    runner = make_runner(model, cache)
    row = place(model, cache, prompt, first_token=9, sparsity=sparsity)
    every_layer = tuple(range(model.config.num_layers))
    slow = SlowDelta(
        model,
        prompt,
        full_layers=every_layer if sparsity is None else sparsity.full_layers,
        budget=10**9 if sparsity is None else sparsity.page_budget,
        recency=1 if sparsity is None else sparsity.recency_pages,
    )
    with torch.inference_mode():
        for _ in range(steps):
            wanted_V = slow.step(row.generated[-1])
            before = row.attended
            got_V = advance(runner, [row])[0]
            torch.testing.assert_close(got_V, wanted_V, atol=1e-4, rtol=0)
            assert row.attended - before == slow.attended[-1]


@pytest.mark.parametrize("mode", LAYOUT_MODES)
@pytest.mark.parametrize("sparsity", DELTAS.values(), ids=DELTAS.keys())
def test_delta(tiny_model: Transformer, mode: str, sparsity: SparsityParams) -> None:
    prompt, _ = make_prompt(tiny_model, mode=mode, tokens=170, kept=101, seed=2)
    compare(tiny_model, prompt, sparsity, steps=20)


@pytest.mark.parametrize("mode", LAYOUT_MODES)
def test_dense(tiny_model: Transformer, mode: str) -> None:
    prompt, _ = make_prompt(tiny_model, mode=mode, tokens=60, kept=41, seed=3)
    compare(tiny_model, prompt, None, steps=18)


@pytest.mark.parametrize("front_rest", [(f, r) for f in (0, 1, 15) for r in (0, 1, 15)])
def test_page_edges_of_the_two_groups_are_independent(
    tiny_model: Transformer, front_rest: tuple[int, int]
) -> None:
    front, rest = front_rest
    prompt, _ = make_prompt(
        tiny_model, mode="head", tokens=128 + front, kept=80 + rest, seed=front * 16 + rest
    )
    compare(tiny_model, prompt, DELTAS["front and rest"], steps=3)


def test_the_dynamic_rope_stretches_by_the_original_length() -> None:
    from shared.model.random import random_config, random_model
    from shared.model.rope_config import RopeConfig, RopeKind

    rope = RopeConfig(kind=RopeKind.DYNAMIC, factor=2.0, original_max_position=64)
    model = random_model(random_config("llama", rope=rope), seed=5)
    prompt, _ = make_prompt(model, mode="shared", tokens=90, kept=50)
    compare(model, prompt, None, steps=3)
