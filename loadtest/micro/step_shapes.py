"""Models and batches that decode steps are measured at; weights are random, made on the device.

Shapes: E hidden width, V vocabulary.
"""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from loadtest.micro.pass_model import MODEL_SHAPES
from shared.model.config import ModelConfig
from shared.model.layers import LayerWeights
from shared.model.rope_config import RopeConfig
from shared.model.transformer import Transformer

R1_QWEN_1_5B = ModelConfig(
    family="qwen2",
    vocab_size=151_936,
    hidden_size=1536,
    intermediate_size=8960,
    num_layers=28,
    num_heads=12,
    num_kv_heads=2,
    head_dim=128,
    qkv_bias=True,
    max_position=131_072,
    rope=RopeConfig(),
)
"""DeepSeek-R1-Distill-Qwen-1.5B."""

LLAMA_3_1_8B = MODEL_SHAPES["llama-3.1-8b"]
"""Llama-3.1-8B."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCase:
    """A batch of equal rows."""

    config: ModelConfig
    """Model."""
    batch: int
    """Rows."""
    context: int
    """Original tokens of a row before the first step that is measured."""
    full_layers: tuple[int, ...]
    """F."""
    keep_rate: float | None = None
    """Share of the prompt that pruned arms hold; None: there are none."""
    budget: int = 64
    """Page budget K."""
    recency: int = 8
    """Recency pages L."""
    whole_layers: int = 4
    """Layers that hold every prompt token, m."""


CASES = {
    "r1-qwen-1.5b 64 x 18432": StepCase(
        config=R1_QWEN_1_5B, batch=64, context=18_432, full_layers=(0, 1, 2, 14, 22)
    ),
    "r1-qwen-1.5b 64 x 4096": StepCase(
        config=R1_QWEN_1_5B, batch=64, context=4096, full_layers=(0, 1, 2, 14, 22)
    ),
    "llama-3.1-8b 16 x 32768": StepCase(
        config=LLAMA_3_1_8B,
        batch=16,
        context=32_768,
        full_layers=(0, 1, 2, 8, 13),
        keep_rate=0.2,
    ),
    "llama-3.1-8b 1 x 32768": StepCase(
        config=LLAMA_3_1_8B,
        batch=1,
        context=32_768,
        full_layers=(0, 1, 2, 8, 13),
        keep_rate=0.2,
    ),
}

TINY = StepCase(
    config=replace(
        R1_QWEN_1_5B,
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_layers=6,
        num_heads=6,
        num_kv_heads=2,
        head_dim=16,
        max_position=1024,
    ),
    batch=2,
    context=150,
    full_layers=(0, 1, 3),
    keep_rate=0.6,
    budget=4,
    recency=1,
    whole_layers=2,
)
"""Compared only; all that a machine without a GPU can do."""


def random_weights(config: ModelConfig, *, device: torch.device, dtype: torch.dtype) -> Transformer:
    """A model of random weights; nothing passes through the host.

    Norms are near 1, activations keep their size, and attention is uneven.
    """
    generator = torch.Generator(device).manual_seed(11)

    def noise(*size: int, scale: float) -> Tensor:
        drawn = torch.randn(size, generator=generator, device=device, dtype=dtype)
        return drawn.mul_(scale)

    def matrix(outputs: int, inputs: int, *, gain: float = 1.0) -> Tensor:
        return noise(outputs, inputs, scale=gain / inputs**0.5)

    e, d, i = config.hidden_size, config.head_dim, config.intermediate_size
    turned = config.num_heads + config.num_kv_heads

    def layer() -> LayerWeights:
        qk, v = matrix(turned * d, e, gain=1.5), matrix(config.num_kv_heads * d, e)
        heads = (turned + config.num_kv_heads) * d
        return LayerWeights(
            input_norm_E=1.0 + noise(e, scale=0.1),
            qkv=torch.cat((qk, v)),
            qkv_bias=noise(heads, scale=0.1) if config.qkv_bias else None,
            q_norm_D=1.0 + noise(d, scale=0.1) if config.qk_norm else None,
            k_norm_D=1.0 + noise(d, scale=0.1) if config.qk_norm else None,
            out=matrix(e, config.num_heads * d),
            post_norm_E=1.0 + noise(e, scale=0.1),
            gate_up=matrix(2 * i, e),
            down=matrix(e, i),
        )

    return Transformer(
        config,
        embedding_VE=noise(config.vocab_size, e, scale=0.25),
        layers=[layer() for _ in range(config.num_layers)],
        norm_E=1.0 + noise(e, scale=0.1),
        head_VE=matrix(config.vocab_size, e),
        model_hash="random",
    )


def in_float32(model: Transformer) -> Transformer:
    """The same weights, exactly, in float32."""

    def wide(weights: LayerWeights) -> LayerWeights:
        parts = {field.name: getattr(weights, field.name) for field in fields(weights)}
        present = {name: part.float() for name, part in parts.items() if part is not None}
        return replace(weights, **present)

    return Transformer(
        model.config,
        embedding_VE=model.embedding_VE.float(),
        layers=[wide(layer.weights) for layer in model.layers],
        norm_E=model.norm_E.float(),
        head_VE=model.head_VE.float(),
        model_hash="random",
    )
