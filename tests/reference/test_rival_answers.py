"""The paged runner under each rival against slow answers, in every layout."""

import pytest
import torch

from shared.model.transformer import Transformer
from shared.types.methods import SparsityParams
from tests.reference.rivals_slow import SlowRival
from tests.support.decode_rows import (
    LAYOUT_MODES,
    advance,
    make_cache,
    make_prompt,
    make_runner,
    place,
)

READ_WHOLE = {
    "streaming": (),
    "recency": (0, 1, 3),
    "oracle_topk": (0, 1, 3),
    "tidal": (0, 1, 2, 4),
    "less_is_more": (0, 1, 2, 4),
}
"""Layers that read everything, by method."""
CHOOSE_SLOTS = {"tidal": (2, 4), "less_is_more": (2, 4)}
"""Those of them whose attention ranks slots."""


@pytest.mark.parametrize("mode", LAYOUT_MODES)
@pytest.mark.parametrize("method", READ_WHOLE)
def test_the_runner_answers_as_the_slow_twin_and_reads_as_many_slots(
    tiny_model: Transformer, method: str, mode: str
) -> None:
    prompt, _ = make_prompt(tiny_model, mode=mode, tokens=150, kept=75, seed=2)
    params = SparsityParams(
        full_layers=(0, 1, 3),
        page_budget=4,
        recency_pages=1,
        policy=method,
        correction_layer=4,
        recent_share=0.3,
    )
    cache = make_cache(tiny_model)
    runner = make_runner(tiny_model, cache)
    row = place(tiny_model, cache, prompt, first_token=9, sparsity=params)
    slow = SlowRival(
        tiny_model,
        prompt,
        full_layers=READ_WHOLE[method],
        budget=4,
        recency=1,
        method=method,
        choosing_layers=CHOOSE_SLOTS.get(method, ()),
        recent_slots=19,
    )
    with torch.inference_mode():
        for _ in range(12):
            wanted_V = slow.step(row.generated[-1])
            before = row.attended
            got_V = advance(runner, [row])[0]
            torch.testing.assert_close(got_V, wanted_V, atol=1e-4, rtol=0)
            assert row.attended - before == slow.attended[-1]
