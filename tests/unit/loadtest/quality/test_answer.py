"""Greedy answers over pruned KV: the decode engine's, batched or alone, asked early or late."""

from dataclasses import replace

import pytest
import torch

from decode_service.engine.attention import TorchDecodeAttention
from decode_service.engine.runner import DecodeRunner
from decode_service.engine.solo import PromptTensors, solo_row
from loadtest.quality import answer
from loadtest.quality.answer import (
    answers_are_greedy,
    first_token_kl,
    generate,
    generate_many,
)
from prefill_service.engine.evaluate import EvaluatedPrompt, rank_and_prefill
from shared.errors import ConfigError
from shared.kv.slab_layout import SlabLayout
from shared.model.attention import TorchAttention
from shared.model.transformer import Transformer
from shared.types.methods import KvSelect, PruningParams
from tests.support.tiny_model import dense_logits

PRUNED = PruningParams(pruning_layer=3, keep_rate=0.4, deferred_layers=2, aggregation_window=2)
FULL = replace(PRUNED, keep_rate=1.0)


def prompt_ids(tokens: int, *, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(100 * seed + tokens)
    return torch.randint(3, 512, (tokens,), generator=generator).tolist()


def read(model: Transformer, ids: list[int], params: PruningParams = PRUNED) -> EvaluatedPrompt:
    return rank_and_prefill(model, attention=TorchAttention(), token_ids=ids, params=params)


def dense_answer(model: Transformer, ids: list[int], tokens: int) -> list[int]:
    """The whole sequence again for every token."""
    found: list[int] = []
    while len(found) < tokens:
        found.append(int(dense_logits(model, torch.tensor(ids + found))[-1].argmax()))
    return found


def decoded(model: Transformer, ids: list[int], params: PruningParams, tokens: int) -> list[int]:
    """The decode engine's answer to the same KV."""
    prompt = read(model, ids, params)
    slab = SlabLayout.plan(
        model.geometry(),
        prompt_tokens=len(ids),
        kept_tokens=params.kept_count(len(ids)),
        whole_layers=min(params.deferred_layers, params.pruning_layer + 1),
        pruning_layer=params.pruning_layer,
        kv_select=params.kv_select,
        pruned=params.keep_rate < 1.0,
    )
    positions = {
        layout: prompt.layer_kv[layer].positions_RN
        for layer, layout in enumerate(slab.layer_layouts)
        if layout
    }
    first = int(prompt.logits_V.argmax())
    cache, row = solo_row(
        model,
        prompt=PromptTensors(
            prompt_tokens=len(ids),
            layouts=slab.layouts,
            layer_layouts=slab.layer_layouts,
            positions=positions,
            keys_values=[(kv.keys_NGD, kv.values_NGD) for kv in prompt.layer_kv],
        ),
        first_token=first,
        sparsity=None,
        max_tokens=tokens,
    )
    runner = DecodeRunner(model, cache, attention=TorchDecodeAttention())
    return [first, *(runner.step([row])[0].token_id for _ in range(tokens - 1))]


def test_a_full_prompt_is_answered_as_by_dense_passes(tiny_model: Transformer) -> None:
    ids = prompt_ids(25)
    found = generate(tiny_model, read(tiny_model, ids, FULL), max_tokens=6, stop_ids=())
    assert found == dense_answer(tiny_model, ids, 6)


@pytest.mark.parametrize("kv_select", list(KvSelect), ids=lambda mode: mode.value)
def test_a_pruned_prompt_is_answered_as_by_the_decode_engine(
    tiny_model: Transformer, kv_select: KvSelect
) -> None:
    ids, params = prompt_ids(60), replace(PRUNED, kv_select=kv_select)
    found = generate(tiny_model, read(tiny_model, ids, params), max_tokens=8, stop_ids=())
    assert found == decoded(tiny_model, ids, params, 8)


def test_a_batch_of_unlike_prompts_answers_as_each_alone(
    tiny_model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [
        read(tiny_model, prompt_ids(tokens), params)
        for tokens, params in ((30, PRUNED), (90, PRUNED), (45, FULL), (61, PRUNED), (20, FULL))
    ]
    alone = [generate(tiny_model, prompt, max_tokens=5, stop_ids=()) for prompt in prompts]
    assert generate_many(tiny_model, prompts, max_tokens=5, stop_ids=()) == alone
    monkeypatch.setattr(answer, "_BATCH_ROWS", 2)
    assert generate_many(tiny_model, prompts, max_tokens=5, stop_ids=()) == alone
    monkeypatch.setattr(answer, "_BATCH_BYTES", {"cpu": 1})
    assert generate_many(tiny_model, prompts, max_tokens=5, stop_ids=()) == alone


def test_an_answer_ends_before_its_stop_token(tiny_model: Transformer) -> None:
    prompts = [read(tiny_model, prompt_ids(tokens)) for tokens in (30, 50)]
    whole = generate_many(tiny_model, prompts, max_tokens=6, stop_ids=())
    stop = whole[0][2]
    found = generate_many(tiny_model, prompts, max_tokens=6, stop_ids={stop})
    for answered, free in zip(found, whole, strict=True):
        assert answered == (free[: free.index(stop)] if stop in free else free)
    assert generate(tiny_model, prompts[0], max_tokens=6, stop_ids={whole[0][0]}) == []


def test_a_late_question_stands_where_the_prompt_would_go_on(tiny_model: Transformer) -> None:
    contexts = [prompt_ids(tokens) for tokens in (40, 22, 33)]
    questions = [prompt_ids(tokens, seed=9) for tokens in (3, 7, 1)]
    full = [read(tiny_model, ids, FULL) for ids in contexts]
    found = generate_many(tiny_model, full, max_tokens=4, stop_ids=(), questions=questions)
    expected = [
        dense_answer(tiny_model, context + question, 4)
        for context, question in zip(contexts, questions, strict=True)
    ]
    assert found == expected
    assert answers_are_greedy(tiny_model, full, found, questions=questions) == [True] * 3
    wrong = [[*row[:-1], row[-1] ^ 1] for row in found]
    assert answers_are_greedy(tiny_model, full, wrong, questions=questions) == [False] * 3


def test_teacher_forcing_says_what_greedy_decode_says(tiny_model: Transformer) -> None:
    prompts = [read(tiny_model, prompt_ids(tokens)) for tokens in (30, 80, 41, 64)]
    free = generate_many(tiny_model, prompts, max_tokens=6, stop_ids=())
    lengths = (1, 6, 3, 5)
    right = [row[:length] for row, length in zip(free, lengths, strict=True)]
    assert answers_are_greedy(tiny_model, prompts, right) == [True] * 4
    for place in range(6):
        changed = [
            [*row[:place], row[place] ^ 1, *row[place + 1 :]] if place < len(row) else row
            for row in right
        ]
        expected = [place >= length for length in lengths]
        assert answers_are_greedy(tiny_model, prompts, changed) == expected


@pytest.mark.parametrize(
    ("asking", "message"),
    [
        (lambda model, kv: generate(model, kv, max_tokens=0, stop_ids=()), "max_tokens is 0"),
        (lambda model, kv: answers_are_greedy(model, [kv], [[]]), "no tokens"),
        (lambda model, kv: answers_are_greedy(model, [kv], [[5]], questions=[[]]), "question"),
    ],
)
def test_what_cannot_be_answered_is_refused(tiny_model: Transformer, asking, message) -> None:
    with pytest.raises(ConfigError, match=message):
        asking(tiny_model, read(tiny_model, prompt_ids(20)))


def test_divergence_by_hand() -> None:
    full_V, pruned_V = torch.tensor([0.5, 0.25, 0.25]).log(), torch.tensor([0.25, 0.5, 0.25]).log()
    expected = 0.5 * torch.log(torch.tensor(2.0)) + 0.25 * torch.log(torch.tensor(0.5))
    assert first_token_kl(full_V + 3.0, pruned_V - 1.0) == pytest.approx(float(expected), abs=1e-6)
    assert first_token_kl(full_V, full_V) == 0.0
