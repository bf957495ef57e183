"""The first tokens of a prompt: the best one that came with the pass, or what else is asked for."""

import json

import pytest
import torch

from prefill_service.engine.compute import first_tokens
from shared.errors import InternalError
from shared.grammar.compiler import GrammarCompiler
from shared.model.sampler import best_tokens
from shared.tokenizer.tokenizer import Tokenizer
from shared.types.sampling import SamplingParams
from tests.support.prefill_jobs import request_of

SCHEMA = json.dumps({"grammars": [{"json_schema": {"enum": ["a", 7, None]}}]})


@pytest.fixture(scope="module")
def tokenizer(tiny_model_dir: object) -> Tokenizer:
    return Tokenizer.from_folder(tiny_model_dir)  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_every_branch_begins_within_the_grammar(tokenizer: Tokenizer, temperature: float) -> None:
    matcher = GrammarCompiler(tokenizer).matcher(SCHEMA)
    logits = torch.randn(512)
    logits[300] = 90.0  # what it would have drawn
    sampling = SamplingParams(temperature=temperature, seed=3)
    request = request_of(5, sampling=sampling, matcher=matcher, num_branches=6)
    drawn = first_tokens(logits, request)
    assert len(drawn) == 6
    assert all(matcher.fork().follow([token.token_id]) is None for token in drawn)
    assert {tokenizer.decode([t.token_id])[0] for t in drawn} <= {'"', "7", "n"}
    assert [t.token_id for t in first_tokens(logits, request)] == [t.token_id for t in drawn]


@pytest.mark.parametrize("branches", [1, 3])
def test_the_best_token_came_with_the_pass(branches: int) -> None:
    logits = torch.randn(512)
    best_2 = best_tokens(logits[None])[:, 0]
    request = request_of(5, num_branches=branches)
    logits_gone = torch.empty(512, device="meta")  # looking at them again would raise
    assert first_tokens(logits_gone, request, best_2=best_2) == first_tokens(logits, request)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_who_asks_for_more_is_not_given_the_best_token(temperature: float) -> None:
    logits = torch.randn(512)
    sampling = SamplingParams(
        temperature=temperature, seed=1, logprobs=2, logit_bias=((int(logits.argmax()), -99.0),)
    )
    request = request_of(5, sampling=sampling, num_branches=2)
    best_2 = best_tokens(logits[None])[:, 0]
    assert first_tokens(logits, request, best_2=best_2) == first_tokens(logits, request)


def test_a_pass_without_numbers_is_a_defect() -> None:
    logits = torch.full((512,), float("nan"))
    with pytest.raises(InternalError, match="no token can be drawn"):
        first_tokens(logits, request_of(5), best_2=best_tokens(logits[None])[:, 0])


def test_tokens_that_the_client_saw_are_not_drawn_again(tokenizer: Tokenizer) -> None:
    matcher = GrammarCompiler(tokenizer).matcher(SCHEMA)
    request = request_of(5, matcher=matcher, forced_first_tokens=(9,))
    assert [t.token_id for t in first_tokens(torch.randn(512), request)] == [9]
