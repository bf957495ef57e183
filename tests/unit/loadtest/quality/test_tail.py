"""A tail after a prompt's KV equals the same tokens read in one dense pass, alone or in a batch."""

import pytest
import torch
from torch import Tensor

from loadtest.quality.tail import PromptKv, TailRun
from shared.model.attention import TorchAttention
from shared.model.random import random_config, random_model
from shared.model.rope_config import RopeConfig, RopeKind
from shared.model.transformer import Transformer
from tests.support.tiny_model import dense_logits

STRETCHING = RopeConfig(kind=RopeKind.DYNAMIC, factor=2.0, original_max_position=16)


def prompt_ids(tokens: int, *, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(100 * seed + tokens)
    return torch.randint(3, 512, (tokens,), generator=generator).tolist()


def dense_kv(model: Transformer, ids: list[int]) -> PromptKv:
    """All KV of a prompt, from a plain dense pass."""
    rope = model.rope(torch.arange(len(ids)), context_tokens=len(ids))
    x_TE, layers = model.embed(torch.tensor(ids)), []
    for layer in model.layers:
        q, k, v = layer.qkv(x_TE, rope)
        layers.append((k.clone(), v.clone()))
        x_TE = layer.finish(x_TE, TorchAttention().causal(q, k, v))
    return PromptKv(layers=layers, next_position=len(ids), context_tokens=len(ids))


@pytest.mark.parametrize("steps", [[5], [1, 1, 3], [1] * 5])
def test_one_row_equals_a_dense_pass(tiny_model: Transformer, steps: list[int]) -> None:
    ids, tail = prompt_ids(30), prompt_ids(5, seed=1)
    run = TailRun(tiny_model, [dense_kv(tiny_model, ids)], room=5)
    fed = torch.tensor([tail]).split(steps, dim=1)
    x_TE = torch.cat([run.feed(ids_BT) for ids_BT in fed], dim=1)[0]
    expected = dense_logits(tiny_model, torch.tensor(ids + tail))[-5:]
    torch.testing.assert_close(tiny_model.logits(x_TE), expected, atol=1e-4, rtol=0)


def test_tails_longer_than_a_block_are_split(tiny_model: Transformer) -> None:
    ids, tail = prompt_ids(9), prompt_ids(150, seed=1)
    x_TE = TailRun(tiny_model, [dense_kv(tiny_model, ids)], room=150).feed(torch.tensor([tail]))[0]
    expected = dense_logits(tiny_model, torch.tensor(ids + tail))[-150:]
    torch.testing.assert_close(tiny_model.logits(x_TE), expected, atol=1e-4, rtol=0)


def test_ragged_rows_equal_each_alone(tiny_model: Transformer) -> None:
    prompts = [prompt_ids(n, seed=n) for n in (40, 7, 23)]
    tails = [prompt_ids(n, seed=50 + n) for n in (2, 6, 4)]
    dead = [6 - len(tail) for tail in tails]
    run = TailRun(
        tiny_model, [dense_kv(tiny_model, ids) for ids in prompts], room=8, dead_slots=dead
    )
    rows = [[1] * skipped + tail for skipped, tail in zip(dead, tails, strict=True)]
    x_BTE = run.feed(torch.tensor(rows))
    after_BTE = run.feed(torch.tensor([[11], [12], [13]]))
    for row, (ids, tail) in enumerate(zip(prompts, tails, strict=True)):
        whole = torch.tensor([*ids, *tail, 11 + row])
        expected = dense_logits(tiny_model, whole)[-len(tail) - 1 :]
        x_TE = torch.cat((x_BTE[row, dead[row] :], after_BTE[row]))
        torch.testing.assert_close(tiny_model.logits(x_TE), expected, atol=1e-4, rtol=0)


def test_a_row_with_nothing_before_its_tail(tiny_model: Transformer) -> None:
    ids = prompt_ids(12)
    kv = [dense_kv(tiny_model, ids).without_last(n) for n in (12, 3)]
    run = TailRun(tiny_model, kv, room=12, dead_slots=[0, 9])
    x_BTE = run.feed(torch.tensor([ids, [1] * 9 + ids[-3:]]))
    expected = dense_logits(tiny_model, torch.tensor(ids))
    torch.testing.assert_close(tiny_model.logits(x_BTE[0]), expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(tiny_model.logits(x_BTE[1, -3:]), expected[-3:], atol=1e-4, rtol=0)


def test_queries_are_told_in_order_of_layers_and_blocks(tiny_model: Transformer) -> None:
    told: list[tuple[int, tuple[int, ...]]] = []
    run = TailRun(tiny_model, [dense_kv(tiny_model, prompt_ids(5))], room=70)
    run.feed(
        torch.tensor([prompt_ids(70)]),
        on_queries=lambda layer, q_BTHD: told.append((layer, tuple(q_BTHD.shape))),
    )
    assert told == [
        (layer, (1, tokens, 4, 16)) for tokens in (64, 6) for layer in range(len(tiny_model.layers))
    ]


def test_a_stretching_rope_turns_each_token_as_decode_does() -> None:
    model = random_model(random_config("llama", rope=STRETCHING), seed=3)
    ids, tail = prompt_ids(20), prompt_ids(3, seed=1)
    turned: list[Tensor] = []
    run = TailRun(model, [dense_kv(model, ids)], room=3)
    run.feed(
        torch.tensor([tail]),
        on_queries=lambda layer, q_BTHD: turned.append(q_BTHD[0]) if layer == 0 else None,
    )
    x_TE = model.embed(torch.tensor(tail))
    for index in range(3):
        position = len(ids) + index
        rope = model.rope(torch.tensor([position]), context_tokens=position + 1)
        expected = model.layers[0].q(x_TE[index : index + 1], rope)
        torch.testing.assert_close(turned[0][index], expected[0])
