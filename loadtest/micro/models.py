"""Models that benches of kernels run, weights at random."""

from dataclasses import fields, replace
from enum import StrEnum

import torch

from shared.model.config import ModelConfig
from shared.model.layers import LayerWeights
from shared.model.random import random_tensors
from shared.model.state import build_transformer
from shared.model.transformer import Transformer

_UNIFORM = 1e-3


class WeightSpread(StrEnum):
    """How random weights are spread; a device at its power limit runs one faster than another.

    `NORMAL` gives uneven attention and spread logits, as `random_model` does. `UNIFORM` is what
    vLLM draws, the same for every tensor, norms included: within 1e-3 of 0.
    """

    NORMAL = "normal"
    UNIFORM = "uniform"


def random_on_device(
    config: ModelConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    seed: int = 0,
    spread: WeightSpread = WeightSpread.NORMAL,
) -> Transformer:
    """A model drawn on its device, where `random_model` would draw gigabytes on the host."""
    tensors = random_tensors(config, seed=seed, device=device, dtype=dtype)
    if spread is WeightSpread.UNIFORM:
        generator = torch.Generator(device).manual_seed(seed)
        for tensor in tensors.values():
            tensor.uniform_(-_UNIFORM, _UNIFORM, generator=generator)
    return build_transformer(
        config,
        tensors,
        dtype=dtype,
        model_hash=f"random, {spread}, seed {seed}",
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
