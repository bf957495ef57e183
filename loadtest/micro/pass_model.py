"""Models for the bench of a prompt's pass: the shape of one that exists, weights at random.

Shapes: E hidden width, V vocabulary, D head size.
"""

import torch
from torch import Tensor

from shared.model.config import ModelConfig
from shared.model.layers import LayerWeights
from shared.model.rope_config import RopeConfig, RopeKind
from shared.model.transformer import Transformer

_LLAMA3 = RopeConfig(kind=RopeKind.LLAMA3, theta=500_000.0, factor=8.0, original_max_position=8192)

MODEL_SHAPES: dict[str, ModelConfig] = {
    "llama-3.1-8b": ModelConfig(
        family="llama",
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        rms_norm_eps=1e-5,
        max_position=131_072,
        rope=_LLAMA3,
    ),
    "llama-3.2-3b": ModelConfig(
        family="llama",
        vocab_size=128_256,
        hidden_size=3072,
        intermediate_size=8192,
        num_layers=28,
        num_heads=24,
        num_kv_heads=8,
        head_dim=128,
        rms_norm_eps=1e-5,
        tie_embeddings=True,
        max_position=131_072,
        rope=_LLAMA3,
    ),
    "mistral-nemo-12b": ModelConfig(
        family="mistral",
        vocab_size=131_072,
        hidden_size=5120,
        intermediate_size=14_336,
        num_layers=40,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        rms_norm_eps=1e-5,
        max_position=131_072,
        rope=RopeConfig(theta=1_000_000.0),
    ),
}
"""Shapes by name."""


def random_on_device(
    config: ModelConfig, *, device: torch.device, dtype: torch.dtype, seed: int = 0
) -> Transformer:
    """A model drawn on its device, where `random_model` would draw gigabytes on the host."""
    generator = torch.Generator(device).manual_seed(seed)

    def matrix(rows: int, columns: int) -> Tensor:
        empty = torch.empty((rows, columns), device=device, dtype=dtype)
        return empty.normal_(std=columns**-0.5, generator=generator)

    def ones(width: int) -> Tensor:
        return torch.ones(width, device=device, dtype=dtype)

    def biases(width: int) -> Tensor:
        empty = torch.empty(width, device=device, dtype=dtype)
        return empty.normal_(std=0.1, generator=generator)

    e, d = config.hidden_size, config.head_dim
    heads = (config.num_heads + 2 * config.num_kv_heads) * d

    def layer() -> LayerWeights:
        return LayerWeights(
            input_norm_E=ones(e),
            qkv=matrix(heads, e),
            qkv_bias=biases(heads) if config.qkv_bias else None,
            q_norm_D=ones(d) if config.qk_norm else None,
            k_norm_D=ones(d) if config.qk_norm else None,
            out=matrix(e, config.num_heads * d),
            post_norm_E=ones(e),
            gate_up=matrix(2 * config.intermediate_size, e),
            down=matrix(e, config.intermediate_size),
        )

    embedding_VE = matrix(config.vocab_size, e)
    return Transformer(
        config,
        embedding_VE=embedding_VE,
        layers=[layer() for _ in range(config.num_layers)],
        norm_E=ones(e),
        head_VE=embedding_VE if config.tie_embeddings else matrix(config.vocab_size, e),
        model_hash=f"random, seed {seed}",
    )
