"""The mask of an answer's grammar covers the token that prefill draws."""

import json

import pytest
import torch

from prefill_service.engine.compute import first_tokens
from shared.grammar.compiler import GrammarCompiler
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


def test_tokens_that_the_client_saw_are_not_drawn_again(tokenizer: Tokenizer) -> None:
    matcher = GrammarCompiler(tokenizer).matcher(SCHEMA)
    request = request_of(5, matcher=matcher, forced_first_tokens=(9,))
    assert [t.token_id for t in first_tokens(torch.randn(512), request)] == [9]
