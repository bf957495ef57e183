"""The oracle against its definition, computed in float64 by rereading everything for each token."""

from pathlib import Path

import pytest
import torch

from loadtest.quality.answer import generate
from loadtest.quality.oracle import OracleSwitches, ask_prompt, oracle_scores
from prefill_service.engine.evaluate import rank_and_prefill
from shared.model.attention import TorchAttention
from shared.model.transformer import Transformer
from shared.types.methods import PruningParams
from tests.reference.claa_twin import SlowLlama

ANSWER_TOKENS = 4


@pytest.fixture(scope="module")
def slow_model(tiny_model_dir: Path) -> SlowLlama:
    return SlowLlama(tiny_model_dir)


def twin_oracle(
    model: SlowLlama, token_ids: list[int], kernel: int
) -> tuple[list[int], list[float]]:
    """Greedy answer and pooled scores."""
    length, answer = len(token_ids), list[int]()
    per_token: list[list[float]] = []
    while True:
        ids = torch.tensor(token_ids + answer)
        x_TE = model.weights["model.embed_tokens.weight"][ids]
        best = [0.0] * length
        for index in range(model.num_layers):
            x_TE, probs_HTT, _, _ = model.layer(index, x_TE, torch.arange(len(ids)))
            for head in probs_HTT[:, -1, :length]:
                over_prompt = (head / head.sum()).tolist()
                best = [max(a, b) for a, b in zip(best, over_prompt, strict=True)]
        per_token.append(best)
        if len(answer) == ANSWER_TOKENS:
            break
        answer.append(int(model.logits(x_TE[-1]).argmax()))
    mean = [sum(column) / len(per_token) for column in zip(*per_token, strict=True)]
    pad = [0.0] * (kernel // 2)
    padded = [*pad, *mean, *pad]
    return answer, [sum(padded[i : i + kernel]) / kernel for i in range(length)]


@pytest.mark.parametrize("kernel", [1, 7, 13])
def test_oracle_equals_its_definition(
    tiny_model: Transformer, slow_model: SlowLlama, kernel: int
) -> None:
    token_ids = torch.randint(3, 512, (37,)).tolist()
    full = rank_and_prefill(
        tiny_model,
        attention=TorchAttention(),
        token_ids=token_ids,
        params=PruningParams(pruning_layer=3, keep_rate=1.0),
    )
    found = generate(tiny_model, full, max_tokens=ANSWER_TOKENS, stop_ids=())
    asked = ask_prompt(tiny_model, full, token_ids=token_ids, answer_ids=found, window=8)
    ours = oracle_scores(asked, OracleSwitches(pool_kernel=kernel))
    answer, scores = twin_oracle(slow_model, token_ids, kernel)
    assert found == answer
    assert ours.tolist() == pytest.approx(scores, abs=1e-5)
