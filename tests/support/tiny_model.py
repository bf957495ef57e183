"""The one tiny random model of the tests: a llama of 6 layers that runs in milliseconds."""

from pathlib import Path

import torch
from torch import Tensor

from shared.model.attention import TorchAttention
from shared.model.config import ModelConfig
from shared.model.random import random_config, random_model
from shared.model.random_folder import save_random_model
from shared.model.transformer import Transformer

TINY_NAME = "tiny"
TINY_SEED = 7


def tiny_config() -> ModelConfig:
    """6 layers, hidden 64, 4 query and 2 KV heads of size 16, 512 tokens, 1,024 positions."""
    return random_config("llama")


def make_tiny_model() -> Transformer:
    """A fresh copy; equal to the one that `write_tiny_folder` stores."""
    return random_model(tiny_config(), seed=TINY_SEED)


def write_tiny_folder(target: Path) -> Path:
    """Standard folder of the tiny model: float32, byte-level tokenizer, chat template."""
    return save_random_model(target, tiny_config(), seed=TINY_SEED)


@torch.inference_mode()
def dense_logits(model: Transformer, ids_T: Tensor) -> Tensor:
    """Logits [T, V] of a whole prompt with full attention, layer by layer."""
    tokens = ids_T.shape[0]
    rope = model.rope(torch.arange(tokens), context_tokens=tokens)
    attention = TorchAttention()
    x_TE = model.embed(ids_T)
    for layer in model.layers:
        x_TE = layer.finish(x_TE, attention.causal(*layer.qkv(x_TE, rope)))
    return model.logits(x_TE)
