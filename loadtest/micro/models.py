"""Models that benches of kernels run, weights at random."""

from dataclasses import fields, replace

import torch

from shared.model.config import ModelConfig
from shared.model.layers import LayerWeights
from shared.model.random import random_tensors
from shared.model.state import build_transformer
from shared.model.transformer import Transformer


def random_on_device(
    config: ModelConfig, *, device: torch.device, dtype: torch.dtype, seed: int = 0
) -> Transformer:
    """A model drawn on its device, where `random_model` would draw gigabytes on the host."""
    return build_transformer(
        config,
        random_tensors(config, seed=seed, device=device, dtype=dtype),
        dtype=dtype,
        model_hash=f"random, seed {seed}",
        device=str(device),
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
        model_hash="random, in float32",
    )
