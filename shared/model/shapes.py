"""Shapes of models: what a model of random weights is drawn for."""

from shared.errors import ConfigError
from shared.model.config import ModelConfig
from shared.model.rope_config import RopeConfig, RopeKind

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
    "r1-qwen-1.5b": ModelConfig(
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
    ),
    "r1-qwen-7b": ModelConfig(
        family="qwen2",
        vocab_size=152_064,
        hidden_size=3584,
        intermediate_size=18_944,
        num_layers=28,
        num_heads=28,
        num_kv_heads=4,
        head_dim=128,
        qkv_bias=True,
        max_position=131_072,
        rope=RopeConfig(),
    ),
    "smollm2-135m": ModelConfig(
        family="llama",
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        rms_norm_eps=1e-5,
        tie_embeddings=True,
        max_position=8192,
        rope=RopeConfig(theta=100_000.0),
    ),
    "tiny": ModelConfig(
        family="llama",
        vocab_size=2048,
        hidden_size=128,
        intermediate_size=256,
        num_layers=8,
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        rms_norm_eps=1e-5,
        max_position=65_536,
        rope=RopeConfig(),
    ),
}
"""By name; `r1-qwen` is DeepSeek-R1-Distill-Qwen, `smollm2-135m` the embedded model, and `tiny`
runs in milliseconds everywhere."""


def shape_named(name: str) -> ModelConfig:
    """The shape of that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in MODEL_SHAPES:
        raise ConfigError(f"no model shape {name!r}; choose one of {', '.join(MODEL_SHAPES)}")
    return MODEL_SHAPES[name]
