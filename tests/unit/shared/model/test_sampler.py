"""Sampling: filters, penalties, log-probabilities, and draws that depend on nothing else."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shared.errors import InternalError
from shared.model.sampler import (
    LOWEST_LOGPROB,
    DrawRow,
    best_tokens,
    log_probabilities,
    sample,
    sample_rows,
    uniform,
)
from shared.types.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0.0)
PLAIN = SamplingParams()


def logits(count: int = 64, *, seed: int = 0, scale: float = 3.0) -> Tensor:
    return scale * torch.randn(count, generator=torch.Generator().manual_seed(seed))


def tokens_of(logits_V: Tensor, params: SamplingParams, *, draws: int = 400) -> list[int]:
    return [sample(logits_V, params=params, draw=draw).token_id for draw in range(draws)]


params_strategy = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 0.9, 0.3, 1e-6]),
    top_k=st.sampled_from([0, 1, 3, 200]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    presence_penalty=st.sampled_from([0.0, -1.0, 1.5]),
    frequency_penalty=st.sampled_from([0.0, 0.7]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    seed=st.integers(0, 2**64 - 1),
    logit_bias=st.sampled_from([(), ((3, 5.0),), ((1, -100.0), (2, 100.0))]),
    logprobs=st.sampled_from([None, 0, 3]),
)
rows_strategy = st.builds(
    DrawRow,
    params=params_strategy,
    branch=st.integers(0, 3),
    draw=st.integers(0, 2**40),
    prompt_ids=st.lists(st.integers(0, 63), max_size=5),
    generated_ids=st.lists(st.integers(0, 63), max_size=5),
    banned_ids=st.lists(st.integers(0, 63), max_size=3),
)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(rows_strategy, min_size=1, max_size=4), seed=st.integers(0, 99))
def test_a_row_draws_the_same_alone_and_in_any_batch(rows: list[DrawRow], seed: int) -> None:
    logits_BV = torch.stack([logits(seed=seed + i) for i in range(len(rows))])
    together = sample_rows(logits_BV, rows)
    reversed_rows = sample_rows(logits_BV.flip(0), rows[::-1])[::-1]
    alone = [sample_rows(logits_BV[i : i + 1], [row])[0] for i, row in enumerate(rows)]
    assert together == alone == reversed_rows


@settings(max_examples=100, deadline=None)
@given(row=rows_strategy, seed=st.integers(0, 999))
def test_no_draw_leaves_the_rules(row: DrawRow, seed: int) -> None:
    logits_V = logits(seed=seed)
    before = logits_V.clone()
    (token,) = sample_rows(logits_V[None], [row])
    assert torch.equal(logits_V, before)
    assert 0 <= token.token_id < 64
    assert token.token_id not in row.banned_ids
    if row.params.logprobs is None:
        assert (token.logprob, token.top) == (None, ())
    else:
        assert token.logprob is not None
        assert len(token.top) == row.params.logprobs
        assert list(token.top) == sorted(token.top, key=lambda pair: (-pair[1], pair[0]))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 999),
    top_k=st.integers(1, 64),
    top_p=st.floats(0.01, 1.0),
    draw=st.integers(0, 1000),
)
def test_top_k_then_top_p_keep_the_right_set(
    seed: int, top_k: int, top_p: float, draw: int
) -> None:
    logits_V = logits(seed=seed)
    params = SamplingParams(top_k=top_k, top_p=top_p)
    order = torch.argsort(logits_V.double(), descending=True, stable=True)[:top_k]
    mass = torch.softmax(logits_V[order].double(), 0).cumsum(0)
    size = int((mass < top_p - 1e-9).sum()) + 1
    assert sample(logits_V, params=params, draw=draw).token_id in order[: size + 1].tolist()
    if top_p < 1.0:
        assert sample(logits_V, params=params, draw=draw).token_id in order[:size].tolist()


def test_frequencies_follow_the_distribution() -> None:
    logits_V = torch.tensor([0.0, 1.0, 2.0])
    found = np.bincount(tokens_of(logits_V, PLAIN, draws=3000), minlength=3) / 3000
    assert np.abs(found - torch.softmax(logits_V, 0).numpy()).max() < 0.03
    cold = np.bincount(tokens_of(logits_V, replace(PLAIN, temperature=0.5)), minlength=3) / 400
    assert cold[2] > found[2] + 0.1


def test_greedy_takes_the_first_of_equals() -> None:
    logits_V = torch.tensor([1.0, 5.0, 5.0, 5.0])
    assert sample(logits_V, params=GREEDY).token_id == 1
    assert sample(logits_V, params=replace(GREEDY, logprobs=2)).token_id == 1
    assert sample_rows(logits_V.repeat(3, 1), [DrawRow(params=GREEDY)] * 3)[2].token_id == 1


def test_best_tokens_that_are_known_already_are_taken() -> None:
    logits_BV = torch.randn(5, 300)
    best = int(logits_BV[1].argmax())
    greedy = SamplingParams(temperature=0.0)
    rows = [DrawRow(params=greedy, banned_ids=banned) for banned in ((), (best,), ())]
    wanted = sample_rows(logits_BV[:3], rows)
    assert sample_rows(logits_BV, rows, best_2B=best_tokens(logits_BV)) == wanted
    assert wanted[1].token_id != best
    broken = torch.stack((torch.full((5,), torch.nan), torch.zeros(5))).double()
    with pytest.raises(InternalError, match="not finite"):
        sample_rows(logits_BV, rows, best_2B=broken)


def test_min_p_is_relative_to_the_best() -> None:
    logits_V = torch.tensor([0.0, -1.0, -3.0])
    assert set(tokens_of(logits_V, replace(PLAIN, min_p=0.2))) == {0, 1}
    assert set(tokens_of(logits_V, replace(PLAIN, min_p=1.0))) == {0}


def test_a_wide_nucleus_is_sorted_whole() -> None:
    flat = torch.zeros(4000)
    drawn = tokens_of(flat, replace(PLAIN, top_p=0.9), draws=300)
    assert max(drawn) < 3601
    assert max(drawn) > 2000
    assert max(tokens_of(flat, replace(PLAIN, top_k=2000), draws=300)) in range(1500, 2000)


def test_penalties() -> None:
    logits_V = torch.tensor([2.0, 1.9, -1.0])

    def best(params: SamplingParams, **ids: list[int]) -> int:
        return sample(logits_V, params=params, **ids).token_id  # type: ignore[arg-type]

    repetition = replace(GREEDY, repetition_penalty=1.2)
    assert best(repetition) == 0
    assert best(repetition, prompt_ids=[0]) == best(repetition, generated_ids=[0]) == 1
    assert best(repetition, prompt_ids=[0, 0, 1, 2]) == 0
    presence = replace(GREEDY, presence_penalty=0.2)
    assert best(presence, prompt_ids=[0]) == 0
    assert best(presence, generated_ids=[0]) == 1
    frequency = replace(GREEDY, frequency_penalty=0.06)
    assert best(frequency, generated_ids=[0]) == 0
    assert best(frequency, generated_ids=[0, 0]) == 1
    assert best(replace(GREEDY, logit_bias=((2, 4.0),))) == 2
    assert best(GREEDY, banned_ids=[0, 1]) == 2


def test_logprobs_are_those_of_the_unmodified_distribution() -> None:
    logits_V = logits()
    expected = torch.log_softmax(logits_V, 0)
    params = SamplingParams(temperature=0.1, top_k=1, logit_bias=((5, 100.0),), logprobs=4)
    token = sample(logits_V, params=params)
    assert token.token_id == 5
    assert token.logprob == pytest.approx(float(expected[5]))
    values, ids = expected.topk(4)
    assert [index for index, _ in token.top] == ids.tolist()
    assert [value for _, value in token.top] == pytest.approx(values.tolist())


def test_logprobs_stay_finite() -> None:
    logits_V = torch.tensor([0.0, -float("inf"), -1e30])
    assert log_probabilities(logits_V).tolist() == [0.0, LOWEST_LOGPROB, LOWEST_LOGPROB]
    token = sample(logits_V, params=replace(GREEDY, logprobs=9))
    assert token.top == ((0, 0.0), (1, LOWEST_LOGPROB), (2, LOWEST_LOGPROB))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("params", [GREEDY, PLAIN])
def test_broken_logits_are_our_defect(bad: float, params: SamplingParams) -> None:
    with pytest.raises(InternalError, match="not finite"):
        sample(torch.tensor([0.0, bad]), params=params)


def test_everything_banned() -> None:
    with pytest.raises(InternalError, match="ruled out"):
        sample(torch.zeros(2), params=PLAIN, banned_ids=[0, 1])


def test_uniform_draws_differ_and_repeat() -> None:
    keys = [(s, b, d) for s in (0, 1, 2**64 - 1) for b in (0, 1) for d in range(50)]
    values = [uniform(seed=s, branch=b, draw=d) for s, b, d in keys]
    assert len(set(values)) == len(values)
    assert values == [uniform(seed=s, branch=b, draw=d) for s, b, d in keys]
    assert all(0.0 <= value < 1.0 for value in values)
    assert 0.4 < sum(values) / len(values) < 0.6


def test_draws_are_pinned_across_versions() -> None:
    """A retry may run on a worker of another build: these numbers are part of the contract."""
    assert [uniform(seed=7, branch=0, draw=d) for d in (0, 1)] == [
        0.8720734548204873,
        0.0828426870273763,
    ]


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-9, 2.0])
@pytest.mark.parametrize("penalty", [5e-324, 1e-300, 1e-9, 1e300, 1.7e308])
def test_every_legal_penalty_and_temperature_gives_a_token(
    penalty: float, temperature: float
) -> None:
    params = SamplingParams(temperature=temperature, repetition_penalty=penalty, top_p=0.9)
    logits_V = logits()
    for seen in ([0, 1], list(range(64))):
        for draw in range(8):
            found = sample(logits_V, params=params, prompt_ids=seen, draw=draw).token_id
            assert 0 <= found < 64
    raised = int(logits_V[:2].argmax())
    if penalty < 1e-3 and logits_V[raised] > 0:
        assert sample(logits_V, params=params, prompt_ids=[raised]).token_id == raised
