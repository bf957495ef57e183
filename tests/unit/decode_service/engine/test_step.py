"""Drawing, counters and repeatability of `DecodeRunner.step`."""

import dataclasses

import pytest
import torch

from shared.errors import InternalError
from shared.model.transformer import Transformer
from shared.types.methods import SparsityParams
from shared.types.sampling import SamplingParams
from tests.support.decode_rows import make_cache, make_prompt, make_runner, place

DELTA = SparsityParams(full_layers=(0, 1, 3), page_budget=4, recency_pages=1)
RANDOM = SamplingParams(temperature=1.0, seed=17)


def test_a_step_draws_appends_and_advances(tiny_model: Transformer) -> None:
    prompt, _ = make_prompt(tiny_model, mode="shared", tokens=100, kept=70)
    cache = make_cache(tiny_model)
    runner = make_runner(tiny_model, cache)
    row = place(tiny_model, cache, prompt, first_token=3, sparsity=DELTA)
    (token,) = runner.step([row])
    assert row.generated == [3, token.token_id]
    assert (row.steps, row.draws, row.position) == (1, 2, 101)
    assert len(token.top) == 2


def test_counters_add_up_slots_read_and_slots_of_the_unpruned_prompt(
    tiny_model: Transformer,
) -> None:
    prompt, _ = make_prompt(tiny_model, mode="shared", tokens=100, kept=70)
    cache = make_cache(tiny_model)
    runner = make_runner(tiny_model, cache)
    row = place(tiny_model, cache, prompt, first_token=3, sparsity=DELTA)
    runner.step([row])
    # Layers 0 and 1 read 101 slots and 3 reads 71; 2, 4 and 5 read three whole pages and the last:
    # 7 slots of 71 = 4 * 16 + 7 in the pruned layers.
    assert row.attended == 2 * 101 + 71 + 3 * (3 * 16 + 7)
    assert row.dense == 6 * 101
    runner.step([row])
    assert row.dense == 6 * (101 + 102)


def test_a_dense_row_of_a_whole_prompt_reads_everything(tiny_model: Transformer) -> None:
    prompt, _ = make_prompt(tiny_model, mode="identity", tokens=50, kept=50)
    cache = make_cache(tiny_model)
    runner = make_runner(tiny_model, cache)
    row = place(tiny_model, cache, prompt, first_token=3, sparsity=None)
    for _ in range(3):
        runner.step([row])
    assert row.attended == row.dense == 6 * (51 + 52 + 53)


def test_draws_do_not_depend_on_the_other_rows(tiny_model: Transformer) -> None:
    prompt, _ = make_prompt(tiny_model, mode="head", tokens=60, kept=40)
    answers = []
    for others in (0, 3):
        cache = make_cache(tiny_model)
        runner = make_runner(tiny_model, cache)
        rows = [
            place(
                tiny_model,
                cache,
                prompt,
                first_token=3 + index,
                sparsity=DELTA,
                sampling=RANDOM if index == 0 else dataclasses.replace(RANDOM, seed=index),
                max_tokens=16,
            )
            for index in range(1 + others)
        ]
        for _ in range(8):
            runner.step(rows)
        answers.append(rows[0].generated)
    assert answers[0] == answers[1]


def test_a_failed_draw_leaves_every_row_as_it_was(tiny_model: Transformer) -> None:
    prompt, _ = make_prompt(tiny_model, mode="shared", tokens=40, kept=30)
    cache = make_cache(tiny_model)
    runner = make_runner(tiny_model, cache)
    good = place(tiny_model, cache, prompt, first_token=3, sparsity=None, max_tokens=8)
    bad = place(tiny_model, cache, prompt, first_token=3, sparsity=None, max_tokens=8)
    keys, _ = cache.pool_of(0).flat(0)
    keys[bad.prompt.pages.front.pages[0] * 16] = torch.nan
    with pytest.raises(InternalError):
        runner.step([good, bad])
    assert (good.steps, good.draws, good.generated, good.attended) == (0, 1, [3], 0)
    (token,) = runner.step([good])
    fresh_cache = make_cache(tiny_model)
    fresh = place(tiny_model, fresh_cache, prompt, first_token=3, sparsity=None)
    assert make_runner(tiny_model, fresh_cache).step([fresh])[0].token_id == token.token_id
