"""One layer's products: alone, together, and chunk by chunk."""

import pytest
import torch
from torch import Tensor

from shared.model.attention import TorchAttention
from shared.model.random import random_config, random_model
from shared.model.transformer import Transformer
from tests.support.tiny_model import dense_logits

FAMILIES = ["llama", "mistral", "qwen2", "qwen3"]
IDS = torch.arange(3, 203)


@pytest.mark.parametrize("family", FAMILIES)
def test_q_and_kv_alone_equal_qkv(family: str) -> None:
    model = random_model(random_config(family))
    x_TE = torch.randn(9, 64)
    rope = model.rope(torch.arange(9), context_tokens=9)
    for layer in model.layers:
        together = layer.qkv(x_TE, rope)
        apart = (layer.q(x_TE, rope), *layer.kv(x_TE, rope))
        for a, b in zip(together, apart, strict=True):
            assert torch.allclose(a, b, atol=1e-5)


def test_arguments_are_left_alone(tiny_model: Transformer) -> None:
    x_TE, attn_THD = torch.randn(5, 64), torch.randn(5, 4, 16)
    before = x_TE.clone(), attn_THD.clone()
    rope = tiny_model.rope(torch.arange(5), context_tokens=5)
    tiny_model.layers[0].qkv(x_TE, rope)
    tiny_model.layers[0].finish(x_TE, attn_THD)
    assert torch.equal(x_TE, before[0])
    assert torch.equal(attn_THD, before[1])


def test_more_tokens_than_an_mlp_block(
    tiny_model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = dense_logits(tiny_model, IDS)
    monkeypatch.setattr("shared.model.layers._MLP_ROWS", 64)
    assert (dense_logits(tiny_model, IDS) - whole).abs().max() < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunk", [1, 37, 64])
def test_chunked_equals_unchunked(family: str, chunk: int) -> None:
    model = random_model(random_config(family))
    assert (chunked_logits(model, chunk=chunk) - dense_logits(model, IDS)).abs().max() < 1e-4


@torch.inference_mode()
def chunked_logits(model: Transformer, *, chunk: int) -> Tensor:
    """Every chunk through all layers before the next."""
    tokens = IDS.shape[0]
    cache: list[tuple[Tensor, Tensor]] = [(torch.empty(0, 2, 16),) * 2 for _ in model.layers]
    out: list[Tensor] = []
    for start in range(0, tokens, chunk):
        at = torch.arange(start, min(start + chunk, tokens))
        rope = model.rope(at, context_tokens=tokens)
        x_TE = model.embed(IDS[at])
        for index, layer in enumerate(model.layers):
            q_THD, k_TGD, v_TGD = layer.qkv(x_TE, rope)
            keys, values = (
                torch.cat(pair) for pair in zip(cache[index], (k_TGD, v_TGD), strict=True)
            )
            cache[index] = (keys, values)
            x_TE = layer.finish(x_TE, TorchAttention().causal(q_THD, keys, values))
        out.append(model.logits(x_TE))
    return torch.cat(out)
