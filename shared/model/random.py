"""Models with random weights, for tests, benchmarks and `tandem model random`."""

import hashlib
import json

import torch
from torch import Tensor

from shared.model.config import ModelConfig
from shared.model.rope_config import RopeConfig
from shared.model.state import DTYPES, build_transformer, tensor_shapes
from shared.model.transformer import Transformer


def random_config(
    family: str = "llama",
    *,
    num_layers: int = 6,
    hidden_size: int = 64,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    rope: RopeConfig | None = None,
) -> ModelConfig:
    """A tiny configuration of `family`: 512 tokens of vocabulary, 1,024 positions, head size 16."""
    return ModelConfig(
        family=family,
        vocab_size=512,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=16,
        rms_norm_eps=1e-5,
        tie_embeddings=family == "llama",
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        max_position=1024,
        rope=rope if rope is not None else RopeConfig(),
        bos_token_id=0,
        eos_token_ids=(1,),
    )


def random_model(
    config: ModelConfig, *, seed: int = 0, dtype: str = "float32", device: str = "cpu"
) -> Transformer:
    """A model whose weights depend on `config` and `seed` alone.

    Attention is uneven and logits are spread, so rankings and greedy tokens are well defined.
    """
    label = json.dumps([config.to_dict(), seed], sort_keys=True)
    return build_transformer(
        config,
        random_tensors(config, seed=seed),
        dtype=DTYPES[dtype],
        model_hash=hashlib.sha256(label.encode()).hexdigest(),
        device=device,
    )


def random_tensors(
    config: ModelConfig,
    *,
    seed: int,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:
    """Tensors under transformers' names, drawn where and in the type that they will have."""
    generator = torch.Generator(device).manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, shape in tensor_shapes(config).items():
        noise = torch.randn(shape, generator=generator, device=device, dtype=dtype)
        if name.endswith("norm.weight"):
            tensors[name] = 1.0 + 0.1 * noise
        elif len(shape) == 1:
            tensors[name] = 0.1 * noise
        elif "embed_tokens" in name:
            tensors[name] = 0.25 * noise
        else:
            gain = 1.5 if "q_proj" in name or "k_proj" in name else 1.0
            tensors[name] = noise * (gain / shape[1] ** 0.5)
    return tensors
