"""What a step may depend on, and what it must not."""

import dataclasses

import pytest
import torch

from decode_service.engine.kv_cache import LengthGroup, PagedKvCache
from decode_service.engine.kv_read import KvRead
from decode_service.engine.runner import LayerRead
from decode_service.engine.sequence import Sequence
from shared.kv.geometry import PAGE_SIZE
from shared.model.random import random_model
from shared.model.transformer import Transformer
from shared.types.methods import SparsityParams
from tests.support.decode_rows import (
    LAYOUT_MODES,
    LP,
    WHOLE,
    advance,
    make_cache,
    make_prompt,
    make_runner,
    place,
    scatter_pages,
)
from tests.support.tiny_model import tiny_config

DELTA = SparsityParams(full_layers=(0, 1, 3), page_budget=4, recency_pages=1)
ALL_PAGES = dataclasses.replace(DELTA, page_budget=10**6)


class Reads:
    """Records what a step reads."""

    def __init__(self) -> None:
        self.by_layer: dict[int, KvRead] = {}

    def layer_read(self, seen: LayerRead) -> None:
        self.by_layer[seen.layer] = seen.read


def logits_of(
    model: Transformer,
    mode: str,
    sparsity: SparsityParams | None,
    *,
    force_sparse: bool = False,
    cache: PagedKvCache | None = None,
    steps: int = 6,
) -> torch.Tensor:
    """Logits of some greedy steps, [steps, V]."""
    prompt, _ = make_prompt(model, mode=mode, tokens=150, kept=95, seed=4)
    cache = cache if cache is not None else make_cache(model)
    runner = make_runner(model, cache)
    row = place(
        model,
        cache,
        prompt,
        first_token=11,
        sparsity=sparsity,
        max_tokens=32,
        force_sparse=force_sparse,
    )
    return torch.cat([advance(runner, [row]) for _ in range(steps)])


@pytest.mark.parametrize("mode", LAYOUT_MODES)
def test_a_budget_of_all_pages_is_dense_bit_for_bit(tiny_model: Transformer, mode: str) -> None:
    dense = logits_of(tiny_model, mode, None)
    assert torch.equal(logits_of(tiny_model, mode, ALL_PAGES), dense)


@pytest.mark.parametrize("mode", LAYOUT_MODES)
def test_the_forced_sparse_path_over_all_pages_is_dense(tiny_model: Transformer, mode: str) -> None:
    dense = logits_of(tiny_model, mode, None)
    sparse = logits_of(tiny_model, mode, ALL_PAGES, force_sparse=True)
    torch.testing.assert_close(sparse, dense, atol=1e-5, rtol=0)


def test_a_tight_budget_is_not_dense(tiny_model: Transformer) -> None:
    dense = logits_of(tiny_model, "shared", None)
    assert (logits_of(tiny_model, "shared", DELTA) - dense).abs().max() > 1e-3


@pytest.mark.parametrize("mode", ["shared", "layer", "head"])
def test_keeping_every_token_makes_all_layouts_equal(tiny_model: Transformer, mode: str) -> None:
    whole, _ = make_prompt(tiny_model, mode="identity", tokens=120, kept=120, seed=6)
    kept, _ = make_prompt(tiny_model, mode=mode, tokens=120, kept=120, seed=6)
    results = []
    for prompt in (whole, kept):
        cache = make_cache(tiny_model)
        runner = make_runner(tiny_model, cache)
        row = place(tiny_model, cache, prompt, first_token=5, sparsity=DELTA)
        results.append(torch.cat([advance(runner, [row]) for _ in range(5)]))
    torch.testing.assert_close(results[0], results[1], atol=1e-5, rtol=0)


@pytest.mark.parametrize("sparsity", [None, DELTA], ids=["dense", "delta"])
@pytest.mark.parametrize("mode", LAYOUT_MODES)
def test_scattered_pages_change_nothing(
    tiny_model: Transformer, mode: str, sparsity: SparsityParams | None
) -> None:
    scattered = make_cache(tiny_model, pages=128)
    for pool in scattered.pools.values():
        scatter_pages(pool.pages)
    contiguous = logits_of(tiny_model, mode, sparsity)
    other = logits_of(tiny_model, mode, sparsity, cache=scattered)
    torch.testing.assert_close(other, contiguous, atol=1e-6, rtol=0)


def test_free_pages_are_never_read(tiny_model: Transformer) -> None:
    """Every cache here is poisoned with NaN: it must not reach a logit."""
    assert torch.isfinite(logits_of(tiny_model, "head", DELTA, steps=20)).all()


def test_a_sparse_layer_reads_nothing_but_its_pages(tiny_model: Transformer) -> None:
    prompt, _ = make_prompt(tiny_model, mode="layer", tokens=150, kept=95, seed=4)
    cache = make_cache(tiny_model)
    runner = make_runner(tiny_model, cache)
    row = place(tiny_model, cache, prompt, first_token=11, sparsity=DELTA)
    reads = Reads()
    before_BV = runner.forward([row], observer=reads).logits_BV
    for layer, read in reads.by_layer.items():
        if read.selection is None:
            continue
        group = cache.group_of(layer)
        held = row.prompt.pages.of(group).table
        unread = [p for p in held.tolist() if p not in read.table.tolist()]
        for paged in cache.pool_of(layer).paged(layer):
            paged[torch.tensor(unread)] = torch.nan
            last = (row.kv_length(group)) % PAGE_SIZE
            paged[read.table[-1], last + 1 :] = torch.nan
    assert {layer for layer, read in reads.by_layer.items() if read.selection is not None} == {
        2,
        4,
        5,
    }
    assert torch.equal(runner.forward([row]).logits_BV, before_BV)


def test_selected_pages_hold_the_first_the_recent_and_the_exact_number(
    tiny_model: Transformer,
) -> None:
    params = SparsityParams(full_layers=(0, 1, 3), page_budget=6, recency_pages=3)
    prompt, _ = make_prompt(tiny_model, mode="head", tokens=260, kept=180, seed=8)
    cache = make_cache(tiny_model)
    runner = make_runner(tiny_model, cache)
    row = place(tiny_model, cache, prompt, first_token=11, sparsity=params)
    for _ in range(20):
        reads = Reads()
        runner.forward([row], observer=reads)
        advance(runner, [row])
        for layer in (2, 4, 5):
            selection = reads.by_layer[layer].selection
            assert selection is not None
            length = row.kv_length(cache.group_of(layer))
            last = (length - 1) // PAGE_SIZE
            (pages,) = selection.units_RU.tolist()
            assert len(pages) == 6
            assert pages == sorted(set(pages))
            assert {0, last - 2, last - 1, last} <= set(pages)


def test_the_query_sits_at_the_original_length_whatever_was_pruned(tiny_model: Transformer) -> None:
    prompt, _ = make_prompt(tiny_model, mode="shared", tokens=150, kept=40)
    cache = make_cache(tiny_model)
    runner = make_runner(tiny_model, cache)
    row = place(tiny_model, cache, prompt, first_token=3, sparsity=DELTA)
    assert row.position == 150
    assert (row.kv_length(LengthGroup.FRONT), row.kv_length(LengthGroup.REST)) == (150, 40)
    advance(runner, [row])
    assert row.position == 151
    assert (row.kv_length(LengthGroup.FRONT), row.kv_length(LengthGroup.REST)) == (151, 41)


def ragged_row(model: Transformer, cache: PagedKvCache, index: int) -> Sequence:
    """One of eight rows of different lengths, layouts and policies."""
    tokens = 33 + 23 * index
    prompt, _ = make_prompt(
        model, mode=LAYOUT_MODES[index % 4], tokens=tokens, kept=tokens // 2, seed=index
    )
    sparsity = None if index == 5 else dataclasses.replace(DELTA, page_budget=4 + index % 3)
    return place(model, cache, prompt, first_token=2 + index, sparsity=sparsity, max_tokens=32)


def ragged_rows(model: Transformer, cache: PagedKvCache) -> list[Sequence]:
    return [ragged_row(model, cache, index) for index in range(8)]


def test_eight_ragged_rows_give_together_what_each_gives_alone(tiny_model: Transformer) -> None:
    together_cache = make_cache(tiny_model, pages=256)
    together = ragged_rows(tiny_model, together_cache)
    runner = make_runner(tiny_model, together_cache)
    batched = [advance(runner, together) for _ in range(6)]
    alone_cache = make_cache(tiny_model, pages=256)
    alone_runner = make_runner(tiny_model, alone_cache)
    for index, row in enumerate(ragged_rows(tiny_model, alone_cache)):
        for step in range(6):
            logits_V = advance(alone_runner, [row])[0]
            torch.testing.assert_close(batched[step][index], logits_V, atol=1e-4, rtol=0)
        assert row.generated == together[index].generated


def test_rows_join_and_leave_at_any_step(tiny_model: Transformer) -> None:
    alone_cache = make_cache(tiny_model, pages=256)
    alone_runner = make_runner(tiny_model, alone_cache)
    wanted = []
    for row in ragged_rows(tiny_model, alone_cache):
        for _ in range(5):
            advance(alone_runner, [row])
        wanted.append(row.generated)
    cache = make_cache(tiny_model, pages=72)
    runner = make_runner(tiny_model, cache)
    running: list[Sequence] = []
    results: dict[int, list[int]] = {}
    for step in range(8 + 5):
        if step < 8:
            running.insert(0, ragged_row(tiny_model, cache, step))
        for row in [row for row in running if row.steps == 5]:
            results[row.generated[0] - 2] = row.generated
            cache.release(row.prompt.pages)
            running.remove(row)
        if running:
            advance(runner, running)
    for row in running:
        results[row.generated[0] - 2] = row.generated
        cache.release(row.prompt.pages)
    cache.check_idle()
    assert [results[index] for index in range(8)] == wanted


def test_a_repeated_forward_changes_nothing(tiny_model: Transformer) -> None:
    prompt, _ = make_prompt(tiny_model, mode="head", tokens=100, kept=60)
    cache = make_cache(tiny_model)
    runner = make_runner(tiny_model, cache)
    row = place(tiny_model, cache, prompt, first_token=3, sparsity=DELTA)
    first, again = runner.forward([row]), runner.forward([row])
    assert torch.equal(first.logits_BV, again.logits_BV)
    assert first.attended == again.attended
    assert (row.steps, row.attended, row.dense) == (0, 0, 0)


@pytest.mark.parametrize("whole_layers", [0, 6])
def test_a_cache_may_have_one_group_only(tiny_model: Transformer, whole_layers: int) -> None:
    prompt, _ = make_prompt(tiny_model, mode="identity", tokens=100, kept=100)
    cache = make_cache(tiny_model, whole_layers=whole_layers)
    runner = make_runner(tiny_model, cache)
    row = place(tiny_model, cache, prompt, first_token=3, sparsity=DELTA)
    both_cache = make_cache(tiny_model)
    both_runner = make_runner(tiny_model, both_cache)
    both = place(tiny_model, both_cache, prompt, first_token=3, sparsity=DELTA)
    for _ in range(3):
        assert torch.equal(advance(runner, [row]), advance(both_runner, [both]))
    cache.release(row.prompt.pages)
    cache.check_idle()


def test_layouts_are_as_the_builders_say(tiny_model: Transformer) -> None:
    prompt, _ = make_prompt(tiny_model, mode="head", tokens=100, kept=60)
    cache = make_cache(tiny_model)
    row = place(tiny_model, cache, prompt, first_token=3, sparsity=None)
    assert row.prompt.layer_layouts == (0, 0, 1, 2, 3, 3)
    assert (WHOLE, LP) == (2, 3)


def test_what_free_pages_hold_changes_no_bit(tiny_model: Transformer) -> None:
    for mode in LAYOUT_MODES:
        poisoned = logits_of(tiny_model, mode, DELTA)
        clean = make_cache(tiny_model, poison=False)
        for pool in clean.pools.values():
            pool.memory.zero_()
        assert torch.equal(logits_of(tiny_model, mode, DELTA, cache=clean), poisoned)


def test_bfloat16_decodes_sparse_as_dense() -> None:
    model = random_model(tiny_config(), seed=3, dtype="bfloat16")
    dense = logits_of(model, "head", None, steps=1)
    sparse = logits_of(model, "head", ALL_PAGES, force_sparse=True, steps=1)
    tight = logits_of(model, "head", DELTA, steps=1)
    assert dense.dtype is torch.float32
    assert torch.isfinite(tight).all()
    torch.testing.assert_close(sparse, dense, atol=0.2, rtol=0.05)
