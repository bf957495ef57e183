"""Answers and oracle on a GPU against the same on the CPU."""

import pytest
import torch
from torch import Tensor

from loadtest.quality.answer import answers_are_greedy, generate_many
from loadtest.quality.correlation import agreement
from loadtest.quality.oracle import OracleSwitches, ask_prompt, oracle_scores
from prefill_service.engine.evaluate import EvaluatedPrompt, rank_and_prefill
from shared.model.attention import TorchAttention
from shared.model.random import random_model
from shared.model.transformer import Transformer
from shared.types.methods import PruningParams
from tests.support.tiny_model import TINY_SEED, tiny_config

pytestmark = pytest.mark.gpu
LENGTHS = (40, 200, 77)


def prompts(model: Transformer, *, keep_rate: float) -> list[EvaluatedPrompt]:
    params = PruningParams(pruning_layer=3, deferred_layers=2, keep_rate=keep_rate)
    return [
        rank_and_prefill(model, attention=TorchAttention(), token_ids=ids(n), params=params)
        for n in LENGTHS
    ]


def ids(tokens: int) -> list[int]:
    generator = torch.Generator().manual_seed(tokens)
    return torch.randint(3, 512, (tokens,), generator=generator).tolist()


def oracle(model: Transformer) -> Tensor:
    token_ids = ids(LENGTHS[1])
    full = prompts(model, keep_rate=1.0)[1]
    asked = ask_prompt(model, full, token_ids=token_ids, answer_ids=ids(5), window=8)
    return oracle_scores(asked, OracleSwitches())


@pytest.mark.parametrize("keep_rate", [0.4, 1.0])
def test_answers_are_the_same(tiny_model: Transformer, keep_rate: float) -> None:
    model = random_model(tiny_config(), seed=TINY_SEED, device="cuda")
    read = prompts(model, keep_rate=keep_rate)
    found = generate_many(model, read, max_tokens=6, stop_ids={7})
    on_cpu = prompts(tiny_model, keep_rate=keep_rate)
    assert found == generate_many(tiny_model, on_cpu, max_tokens=6, stop_ids={7})
    answers = [answer or [7] for answer in found]
    assert answers_are_greedy(model, read, answers) == [True] * len(LENGTHS)


@pytest.mark.parametrize(("dtype", "at_least"), [("float32", 0.9999), ("bfloat16", 0.9)])
def test_the_oracle_ranks_the_same(tiny_model: Transformer, dtype: str, at_least: float) -> None:
    model = random_model(tiny_config(), seed=TINY_SEED, dtype=dtype, device="cuda")
    assert agreement(oracle(model).cpu(), oracle(tiny_model)) >= at_least
