"""What every page policy promises of a whole decode step, in every kind of layout."""

import dataclasses
import itertools

import pytest
import torch

from decode_service.engine.attention import Attended, TorchDecodeAttention
from decode_service.engine.kv_cache import LengthGroup, PagedKvCache
from decode_service.engine.runner import DecodeRunner
from decode_service.engine.sequence import Sequence
from decode_service.sparsity.base import Evidence
from shared.kv.geometry import PAGE_SIZE
from shared.model.transformer import Transformer
from shared.types.methods import SparsityParams
from tests.reference.given_reads import GivenReads
from tests.support.decode_rows import (
    LAYOUT_MODES,
    advance,
    make_cache,
    make_prompt,
    make_runner,
    place,
    scatter_pages,
)
from tests.support.policies import EVERYTHING, POLICIES, Reads

STEPS = 7
STEPS_OF = {"raas": 40}
"""RaaS reads the whole prompt: it leaves nothing out before the answer has pages of its own."""

every_policy = pytest.mark.parametrize("params", POLICIES.values(), ids=POLICIES.keys())
every_layout = pytest.mark.parametrize("mode", LAYOUT_MODES)


def num_steps(params: SparsityParams) -> int:
    return STEPS_OF.get(params.policy, STEPS)


def logits_of(
    model: Transformer,
    mode: str,
    params: SparsityParams | None,
    *,
    cache: PagedKvCache | None = None,
    force_sparse: bool = False,
    steps: int = STEPS,
) -> torch.Tensor:
    """Logits of some greedy steps of one row, [steps, V]."""
    prompt, _ = make_prompt(model, mode=mode, tokens=150, kept=95, seed=4)
    cache = cache if cache is not None else make_cache(model)
    row = place(
        model,
        cache,
        prompt,
        first_token=11,
        sparsity=params,
        force_sparse=force_sparse,
    )
    runner = make_runner(model, cache)
    return torch.cat([advance(runner, [row]) for _ in range(steps)])


@every_layout
@every_policy
def test_the_engine_reads_what_it_says(
    tiny_model: Transformer, mode: str, params: SparsityParams
) -> None:
    """Logits are those of slow attention over the reported slots, in scattered pages too."""
    prompt, _ = make_prompt(tiny_model, mode=mode, tokens=150, kept=95, seed=4)
    cache = make_cache(tiny_model, pages=128)
    scatter_pages(cache.pools[LengthGroup.REST].pages)
    row = place(tiny_model, cache, prompt, first_token=11, sparsity=params)
    runner, slow = make_runner(tiny_model, cache), GivenReads(tiny_model, prompt)
    chosen = 0
    for _ in range(num_steps(params)):
        reads = Reads(row)
        computed = runner.forward([row], observer=reads)
        with torch.inference_mode():
            wanted_V = slow.step(row.generated[-1], reads.slots)
        torch.testing.assert_close(computed.logits_BV[0], wanted_V, atol=1e-4, rtol=0)
        assert computed.attended == [sum(len(heads[0]) for heads in reads.slots)]
        chosen += len(reads.selections)
        computed.accept(computed.logits_BV.argmax(dim=-1).tolist())
    assert chosen, "the budget is small enough that something is chosen"


@every_policy
@pytest.mark.parametrize(("front", "rest"), list(itertools.product((0, 1, 15), repeat=2)))
def test_page_boundaries_of_both_length_groups(
    tiny_model: Transformer, params: SparsityParams, front: int, rest: int
) -> None:
    """Lengths of 0, 1 and 15 mod 16 slots, the fed token's included."""
    prompt, _ = make_prompt(tiny_model, mode="layer", tokens=127 + front, kept=79 + rest, seed=7)
    cache = make_cache(tiny_model)
    row = place(tiny_model, cache, prompt, first_token=11, sparsity=params)
    lengths = [row.kv_length(group) + 1 for group in LengthGroup]
    assert [length % PAGE_SIZE for length in lengths] == [front, rest]
    runner, slow = make_runner(tiny_model, cache), GivenReads(tiny_model, prompt)
    for _ in range(2):
        reads = Reads(row)
        computed = runner.forward([row], observer=reads)
        with torch.inference_mode():
            wanted_V = slow.step(row.generated[-1], reads.slots)
        torch.testing.assert_close(computed.logits_BV[0], wanted_V, atol=1e-4, rtol=0)
        for layer, heads in enumerate(reads.slots):
            last = row.kv_length(cache.group_of(layer))
            assert all(slots[-1] == last for slots in heads), "the fed token reads itself"
        computed.accept(computed.logits_BV.argmax(dim=-1).tolist())


@every_layout
@every_policy
def test_where_the_pages_lie_changes_nothing(
    tiny_model: Transformer, mode: str, params: SparsityParams
) -> None:
    scattered = make_cache(tiny_model, pages=128)
    for pool in scattered.pools.values():
        scatter_pages(pool.pages)
    steps = num_steps(params)
    contiguous = logits_of(tiny_model, mode, params, steps=steps)
    other = logits_of(tiny_model, mode, params, cache=scattered, steps=steps)
    torch.testing.assert_close(other, contiguous, atol=1e-5, rtol=0)


@every_layout
@every_policy
def test_what_free_pages_hold_changes_no_bit(
    tiny_model: Transformer, mode: str, params: SparsityParams
) -> None:
    clean = make_cache(tiny_model, poison=False)
    for pool in clean.pools.values():
        pool.memory.zero_()
    steps = num_steps(params)
    poisoned = logits_of(tiny_model, mode, params, steps=steps)
    assert torch.isfinite(poisoned).all()
    assert torch.equal(logits_of(tiny_model, mode, params, cache=clean, steps=steps), poisoned)


@every_layout
@every_policy
def test_a_budget_of_everything_is_dense(
    tiny_model: Transformer, mode: str, params: SparsityParams
) -> None:
    """Bit for bit by the gate, and within rounding when the sparse path is forced."""
    params = dataclasses.replace(params, page_budget=EVERYTHING, mass=None)
    dense = logits_of(tiny_model, mode, None)
    assert torch.equal(logits_of(tiny_model, mode, params), dense)
    forced = logits_of(tiny_model, mode, params, force_sparse=True)
    torch.testing.assert_close(forced, dense, atol=1e-5, rtol=0)


@every_policy
def test_neighbours_do_not_matter(tiny_model: Transformer, params: SparsityParams) -> None:
    """Rows of four layouts and lengths, joined one a step, give what each gives alone."""

    def row_in(cache: PagedKvCache, index: int) -> Sequence:
        # Of 640 such cases one has two slots whose scores rounding alone tells apart: not these.
        tokens, seed = 130 - 17 * index, 10 + index
        prompt, _ = make_prompt(
            tiny_model, mode=LAYOUT_MODES[index], tokens=tokens, kept=tokens - 24, seed=seed
        )
        return place(tiny_model, cache, prompt, first_token=2 + index, sparsity=params)

    cache = make_cache(tiny_model, pages=128)
    runner = make_runner(tiny_model, cache)
    rows: list[Sequence] = []
    batched: list[list[torch.Tensor]] = []
    for step in range(num_steps(params) + 3):
        if step < len(LAYOUT_MODES):
            rows.append(row_in(cache, step))
            batched.append([])
        for index, logits_V in enumerate(advance(runner, rows)):
            batched[index].append(logits_V)
    for index, row in enumerate(rows):
        alone_cache = make_cache(tiny_model)
        alone_runner, alone = make_runner(tiny_model, alone_cache), row_in(alone_cache, index)
        for logits_V in batched[index]:
            wanted_V = advance(alone_runner, [alone])[0]
            torch.testing.assert_close(logits_V, wanted_V, atol=1e-4, rtol=0)
        assert row.generated == alone.generated


class FailingAttention:
    """Attention that gives way at the n-th call from now, once."""

    name = "failing"

    def __init__(self) -> None:
        self.calls_left = 0

    def attend(
        self, q_HD: torch.Tensor, k_TGD: torch.Tensor, v_TGD: torch.Tensor, *, evidence: Evidence
    ) -> Attended:
        self.calls_left -= 1
        if self.calls_left == 0:
            raise RuntimeError("planned failure")
        return TorchDecodeAttention().attend(q_HD, k_TGD, v_TGD, evidence=evidence)


@every_layout
@every_policy
def test_a_failed_step_leaves_no_trace(
    tiny_model: Transformer, mode: str, params: SparsityParams
) -> None:
    """Each step fails in some layer, then is dropped once, and only then counts."""
    prompt, _ = make_prompt(tiny_model, mode=mode, tokens=150, kept=95, seed=4)
    cache = make_cache(tiny_model)
    attention = FailingAttention()
    runner = DecodeRunner(tiny_model, cache, attention=attention)
    row = place(tiny_model, cache, prompt, first_token=11, sparsity=params)
    logits = []
    steps = num_steps(params)
    for step in range(steps):
        attention.calls_left = 1 + step % tiny_model.config.num_layers
        with pytest.raises(RuntimeError, match="planned"):
            runner.step([row])
        runner.forward([row])
        logits.append(advance(runner, [row]))
    assert torch.equal(torch.cat(logits), logits_of(tiny_model, mode, params, steps=steps))
