"""What config.json may say, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shared.errors import ModelLoadError
from shared.model.config import FAMILIES, ModelConfig
from shared.model.random import random_config
from shared.model.rope_config import RopeConfig, RopeKind

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "rope_theta": 10000.0,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
}


@pytest.mark.parametrize("family", FAMILIES)
def test_round_trip(family: str) -> None:
    config = random_config(family)
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("kind", [RopeKind.LINEAR, RopeKind.DYNAMIC, RopeKind.YARN])
def test_round_trip_of_a_stretched_context(kind: RopeKind) -> None:
    rope = RopeConfig(kind=kind, factor=4.0, original_max_position=256)
    config = replace(random_config("llama", rope=rope), max_position=1024)
    assert ModelConfig.from_dict(config.to_dict()) == config


def test_defaults_of_old_files() -> None:
    config = ModelConfig.from_dict(LLAMA)
    assert (config.num_kv_heads, config.head_dim, config.eos_token_ids) == (4, 16, (2, 3))
    assert config.bos_token_id == 1
    assert not config.qkv_bias


def test_head_dim_is_read_from_the_file() -> None:
    nemo = LLAMA | {"model_type": "mistral", "hidden_size": 80, "head_dim": 32}
    assert ModelConfig.from_dict(nemo).head_dim == 32
    assert ModelConfig.from_dict(LLAMA | {"model_type": "qwen3"}).head_dim == 128


@pytest.mark.parametrize(
    ("change", "limit"),
    [
        ({"model_type": "mistral", "sliding_window": 32}, 32),
        ({"model_type": "mistral", "sliding_window": None}, 128),
        ({"model_type": "mistral", "sliding_window": 4096}, 128),
        ({"model_type": "qwen2", "sliding_window": 32, "use_sliding_window": False}, 128),
        ({"model_type": "qwen2", "sliding_window": 32, "use_sliding_window": True}, 32),
    ],
)
def test_context_ends_where_a_sliding_window_would_bind(change: dict[str, Any], limit: int) -> None:
    assert ModelConfig.from_dict(LLAMA | change).max_position == limit


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"model_type": "gemma"}, "family 'gemma' is not supported"),
        ({"model_type": None}, "family None"),
        ({"hidden_size": "64"}, "no whole number for 'hidden_size'"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"mlp_bias": True}, "biases in the MLP"),
        ({"attention_bias": True}, "a bias in the attention output"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised weights"),
        ({"num_key_value_heads": 3}, "do not divide"),
        ({"head_dim": 15}, "not even"),
        ({"num_hidden_layers": 0}, "must not be empty"),
        ({"max_position_embeddings": 0}, "must be positive"),
    ],
)
def test_what_cannot_be_served_is_named(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelLoadError, match=text):
        ModelConfig.from_dict(LLAMA | change)


def test_an_unknown_family_cannot_be_constructed() -> None:
    with pytest.raises(ModelLoadError, match="unknown family"):
        replace(random_config(), family="gpt")


def test_end_ids_come_from_both_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"eos_token_id": 2}))
    assert ModelConfig.from_folder(tmp_path).eos_token_ids == (2,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 2]}))
    assert ModelConfig.from_folder(tmp_path).eos_token_ids == (5, 2)


@pytest.mark.parametrize(
    ("content", "text"), [(None, "does not exist"), ("{", "as JSON"), ("[]", "a JSON object")]
)
def test_unreadable_files(tmp_path: Path, content: str | None, text: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelLoadError, match=text):
        ModelConfig.from_folder(tmp_path)
