"""Our decoder against transformers, for every family, rotary kind and dtype."""

import pytest
import torch

from shared.model.config import ModelConfig
from shared.model.random import random_config, random_model, random_tensors
from shared.model.rope_config import RopeConfig, RopeKind, rope_from_dict
from tests.support.hf_twin import hf_logits, hf_model
from tests.support.tiny_model import dense_logits

FAMILIES = ["llama", "mistral", "qwen2", "qwen3"]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
ROPES = {
    "linear": RopeConfig(kind=RopeKind.LINEAR, factor=4.0, original_max_position=64),
    "dynamic": RopeConfig(kind=RopeKind.DYNAMIC, factor=4.0, original_max_position=64),
    "llama3": RopeConfig(
        kind=RopeKind.LLAMA3, factor=8.0, original_max_position=64, low_freq_factor=1.0
    ),
    "yarn": rope_from_dict({"rope_parameters": YARN}, max_position=64),
    "yarn_mscale": rope_from_dict(
        {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5, "truncate": False}},
        max_position=64,
    ),
}


def ids(count: int) -> torch.Tensor:
    return torch.randint(3, 512, (count,), generator=torch.Generator().manual_seed(count))


def difference(config: ModelConfig, *, tokens: int, dtype: str = "float32") -> float:
    theirs = hf_model(config, random_tensors(config, seed=3), dtype=getattr(torch, dtype))
    ours = random_model(config, seed=3, dtype=dtype)
    gap = dense_logits(ours, ids(tokens)) - hf_logits(theirs, ids(tokens))
    return float(gap.abs().max())


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers(family: str) -> None:
    assert difference(random_config(family), tokens=120) < 1e-4


@pytest.mark.parametrize("kind", ROPES)
def test_rope_kinds_equal_transformers_beyond_the_pretraining_length(kind: str) -> None:
    assert difference(random_config("llama", rope=ROPES[kind]), tokens=150) < 1e-4


def test_dynamic_rope_is_plain_within_the_pretraining_length() -> None:
    assert difference(random_config("llama", rope=ROPES["dynamic"]), tokens=50) < 1e-4


def test_head_size_is_read_not_derived() -> None:
    config = random_config("mistral", hidden_size=96)
    assert config.head_dim != config.hidden_size // config.num_heads
    assert difference(config, tokens=60) < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_is_as_close_to_float32_as_transformers_is(family: str) -> None:
    config = random_config(family)
    tensors = random_tensors(config, seed=3)
    exact = hf_logits(hf_model(config, tensors), ids(100))
    theirs = hf_logits(hf_model(config, tensors, dtype=torch.bfloat16), ids(100))
    ours = dense_logits(random_model(config, seed=3, dtype="bfloat16"), ids(100))
    assert (ours - exact).abs().mean() < 1.2 * (theirs - exact).abs().mean()
