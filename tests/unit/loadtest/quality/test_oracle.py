"""The oracle's switches, its refusals, and what it shows rankers."""

from dataclasses import replace

import pytest
import torch

from loadtest.quality.oracle import (
    AskedPrompt,
    OracleSwitches,
    ask_prompt,
    oracle_scores,
)
from prefill_service.engine.evaluate import EvaluatedPrompt, rank_and_prefill
from shared.errors import ConfigError
from shared.model.attention import TorchAttention
from shared.model.transformer import Transformer
from shared.types.methods import PruningParams

PRUNED = PruningParams(pruning_layer=3, keep_rate=0.4, deferred_layers=2)
IDS = list(range(10, 50))


def read(model: Transformer, *, keep_rate: float = 1.0) -> EvaluatedPrompt:
    return rank_and_prefill(
        model,
        attention=TorchAttention(),
        token_ids=IDS,
        params=replace(PRUNED, keep_rate=keep_rate),
    )


def toy(keys: list[list[float]], queries: list[list[list[float]]]) -> AskedPrompt:
    """One layer a list of keys, one KV head, head size 1; queries by layer, token and head."""
    return AskedPrompt(
        keys=[torch.tensor(row)[:, None, None] for row in keys],
        window_queries=[torch.zeros(1, 2, 1) for _ in keys],
        answer_queries=[torch.tensor(layer)[:, :, None] for layer in queries],
    )


def test_raw_scores_by_hand() -> None:
    # Token 0 asks with heads 1 and -1 in layer 0 and 2, 0 in layer 1; token 1 with 0, 1 and 1, 1.
    asked = toy([[1.0, -2.0, 3.0], [0.0, 1.0, -1.0]], [[[1, -1], [0, 1]], [[2, 0], [1, 1]]])
    # Token 0: layer 0 largest of +-k = 1, 2, 3; layer 1 of 2k and 0 = 0, 2, 0. Token 1: layer 0
    # of 0 and k = 1, 0, 3; layer 1 k = 0, 1, -1. Largest over layers: 1, 2, 3 and 1, 1, 3.
    switches = OracleSwitches(softmax=False, pool_kernel=1)
    assert oracle_scores(asked, switches).tolist() == pytest.approx([1.0, 1.5, 3.0])
    pooled = oracle_scores(asked, replace(switches, pool_kernel=3))
    assert pooled.tolist() == pytest.approx([2.5 / 3, 5.5 / 3, 4.5 / 3])


def test_standardised_heads_by_hand() -> None:
    asked = toy([[1.0, -1.0]], [[[1.0, 5.0]]])
    switches = OracleSwitches(softmax=False, zhead=True, pool_kernel=1)
    assert oracle_scores(asked, switches).tolist() == pytest.approx([1.0, -1.0])


def test_the_last_prompt_token_and_every_answer_token_ask(tiny_model: Transformer) -> None:
    full = read(tiny_model)
    asked = ask_prompt(tiny_model, full, token_ids=IDS, answer_ids=[60, 61, 62], window=3)
    assert all(q_AHD.shape[0] == 1 + 3 for q_AHD in asked.answer_queries)
    for window, answer in zip(asked.window_queries, asked.answer_queries, strict=True):
        torch.testing.assert_close(window[-1], answer[0])


def test_blocks_of_queries_change_nothing(
    tiny_model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ask_prompt(
        tiny_model, read(tiny_model), token_ids=IDS, answer_ids=list(range(90, 99)), window=4
    )
    whole = oracle_scores(asked, OracleSwitches())
    monkeypatch.setattr("loadtest.quality.oracle._LOGITS", 3 * len(IDS) * 4)
    torch.testing.assert_close(oracle_scores(asked, OracleSwitches()), whole)


def test_a_window_shows_the_queries_of_the_last_tokens(tiny_model: Transformer) -> None:
    full = read(tiny_model)
    asked = ask_prompt(tiny_model, full, token_ids=IDS, answer_ids=[], window=12)
    rope = tiny_model.rope(torch.arange(len(IDS)), context_tokens=len(IDS))
    q_THD = tiny_model.layers[0].q(tiny_model.embed(torch.tensor(IDS)), rope)
    seen = asked.observation(0, window=5)
    torch.testing.assert_close(seen.q_WHD, q_THD[-5:], atol=1e-5, rtol=0)
    assert seen.k_LGD.shape[0] == asked.prompt_tokens == len(IDS)
    with pytest.raises(ConfigError, match="13 tokens was not recorded"):
        asked.observation(0, window=13)


def test_a_prompt_shorter_than_the_window_gives_what_it_has(tiny_model: Transformer) -> None:
    asked = ask_prompt(tiny_model, read(tiny_model), token_ids=IDS, answer_ids=[7], window=99)
    assert asked.window_queries[0].shape[0] == len(IDS)
    assert asked.answer_queries[0].shape[0] == 2


def test_a_pruned_prompt_and_bad_switches_are_refused(tiny_model: Transformer) -> None:
    pruned = read(tiny_model, keep_rate=0.3)
    with pytest.raises(ConfigError, match="was pruned"):
        ask_prompt(tiny_model, pruned, token_ids=IDS, answer_ids=[], window=1)
    with pytest.raises(ConfigError, match="window is 0"):
        ask_prompt(tiny_model, read(tiny_model), token_ids=IDS, answer_ids=[], window=0)
    with pytest.raises(ConfigError, match="odd width"):
        OracleSwitches(pool_kernel=4)


def test_labels_tell_switches_apart() -> None:
    assert OracleSwitches().label == "softmax, pool 7"
    assert OracleSwitches(softmax=False, zhead=True, pool_kernel=13).label == "raw, zhead, pool 13"
