"""Shape of a decoder, as config.json states it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shared.errors import ModelLoadError
from shared.model.rope_config import RopeConfig, RopeKind, rope_from_dict

FAMILIES: dict[str, str] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""Family (model_type) to the architecture name written into config.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Everything that the forward pass needs to know about a checkpoint."""

    family: str
    """llama, mistral, qwen2 or qwen3."""
    vocab_size: int
    """Rows of the embedding."""
    hidden_size: int
    """Width E of the residual stream."""
    intermediate_size: int
    """Width of the gated MLP."""
    num_layers: int
    """Decoder layers."""
    num_heads: int
    """Query heads H."""
    num_kv_heads: int
    """KV heads G; divides num_heads."""
    head_dim: int
    """Head size D; not always hidden_size / num_heads (Mistral Nemo, Qwen3)."""
    rms_norm_eps: float = 1e-6
    """Added to the mean square."""
    tie_embeddings: bool = False
    """Whether the output head is the embedding."""
    qkv_bias: bool = False
    """Whether q, k and v products add a bias (Qwen2)."""
    qk_norm: bool = False
    """Whether queries and keys are normalised per head before rotation (Qwen3)."""
    max_position: int
    """Context limit in tokens; at most the sliding window, within which attention is full."""
    rope: RopeConfig
    """Rotary embedding."""
    bos_token_id: int | None = None
    """Beginning-of-text id."""
    eos_token_ids: tuple[int, ...] = ()
    """Ids that end an answer."""

    def __post_init__(self) -> None:
        checks = (
            (
                self.family in FAMILIES,
                f"unknown family {self.family!r}; known: {', '.join(FAMILIES)}",
            ),
            (
                self.num_layers > 0 and self.vocab_size > 0,
                "layers and vocabulary must not be empty",
            ),
            (
                self.num_kv_heads > 0 and self.num_heads % self.num_kv_heads == 0,
                f"{self.num_heads} query heads do not divide into {self.num_kv_heads} KV heads",
            ),
            (
                self.head_dim > 0 and self.head_dim % 2 == 0,
                f"head size {self.head_dim} is not even",
            ),
            (self.max_position > 0, "context limit must be positive"),
        )
        for ok, text in checks:
            if not ok:
                raise ModelLoadError(
                    f"model configuration: {text}; the config.json does not describe a servable "
                    "checkpoint; choose another"
                )

    @classmethod
    def from_folder(cls, path: Path) -> "ModelConfig":
        """Reads config.json, and generation_config.json for the end-of-text ids.

        Raises:
            ModelLoadError: a file is missing or damaged, or something is not supported.
        """
        config = cls.from_dict(read_json(path / "config.json"))
        generation_file = path / "generation_config.json"
        if not generation_file.exists():
            return config
        eos = _ids(read_json(generation_file).get("eos_token_id"))
        return replace(config, eos_token_ids=tuple(dict.fromkeys(eos + config.eos_token_ids)))

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "ModelConfig":
        """Reads the keys of a transformers config.json.

        Raises:
            ModelLoadError: unknown family, missing key, or an unsupported feature.
        """
        family = raw.get("model_type")
        if family not in FAMILIES:
            raise ModelLoadError(
                f"model family {family!r} is not supported: config.json names a model_type other "
                "than "
                f"{', '.join(FAMILIES)}; choose a checkpoint of one of these families"
            )
        _refuse_unsupported(raw, family=family)
        num_heads = _int(raw, "num_attention_heads")
        hidden = _int(raw, "hidden_size")
        stated = _int(raw, "max_position_embeddings")
        rope = rope_from_dict(raw, max_position=stated)
        limit = rope.context_limit(stated)
        window = _binding_window(raw, family=family)
        return cls(
            family=family,
            vocab_size=_int(raw, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=_int(raw, "intermediate_size"),
            num_layers=_int(raw, "num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=int(raw.get("num_key_value_heads") or num_heads),
            head_dim=int(
                raw.get("head_dim") or (128 if family == "qwen3" else hidden // num_heads)
            ),
            rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
            qkv_bias=family == "qwen2",
            qk_norm=family == "qwen3",
            max_position=limit if window is None else min(limit, window),
            rope=rope,
            bos_token_id=next(iter(_ids(raw.get("bos_token_id"))), None),
            eos_token_ids=_ids(raw.get("eos_token_id")),
        )

    def to_dict(self) -> dict[str, Any]:
        """A config.json that transformers and `from_dict` read back to the same model."""
        stretched = self.rope.kind in {RopeKind.LINEAR, RopeKind.DYNAMIC}
        return {
            "architectures": [FAMILIES[self.family]],
            "model_type": self.family,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_norm_eps,
            "tie_word_embeddings": self.tie_embeddings,
            "max_position_embeddings": self.rope.original_max_position
            if stretched
            else self.max_position,
            "sliding_window": None,
            "rope_parameters": self.rope.to_dict(),
            "bos_token_id": self.bos_token_id,
            "eos_token_id": list(self.eos_token_ids) or None,
        }


def read_json(path: Path) -> dict[str, Any]:
    """Reads one JSON object.

    Raises:
        ModelLoadError: the file is missing, not JSON, or not an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelLoadError(
            f"{path} does not exist: the model folder is incomplete or the path is wrong; "
            "point at a folder with config.json, tokenizer.json and safetensors, or pull the "
            "model again"
        ) from None
    except (OSError, ValueError) as error:
        raise ModelLoadError(
            f"{path} cannot be read as JSON ({error}): the file is damaged; pull the model again"
        ) from error
    if not isinstance(value, dict):
        raise ModelLoadError(
            f"{path} does not hold a JSON object: the file is damaged; pull the model again"
        )
    return value


def _refuse_unsupported(raw: Mapping[str, Any], *, family: str) -> None:
    activation = raw.get("hidden_act", "silu")
    problems = (
        (activation not in {"silu", "swish"}, f"activation {activation!r} instead of silu"),
        (bool(raw.get("mlp_bias")), "biases in the MLP"),
        (
            bool(raw.get("attention_bias")) and family != "qwen2",
            "a bias in the attention output product",
        ),
        (raw.get("quantization_config") is not None, "quantised weights"),
    )
    for present, text in problems:
        if present:
            raise ModelLoadError(
                f"the checkpoint uses {text}, which this decoder does not implement; choose a "
                "checkpoint without it"
            )


def _binding_window(raw: Mapping[str, Any], *, family: str) -> int | None:
    """The sliding window in force: contexts within it see every key, so it becomes the limit."""
    window = raw.get("sliding_window")
    if window is None or (family in {"qwen2", "qwen3"} and not raw.get("use_sliding_window")):
        return None
    return int(window) if family != "llama" else None


def _int(raw: Mapping[str, Any], key: str) -> int:
    value = raw.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ModelLoadError(
            f"config.json has no whole number for {key!r} (found {value!r}): the file is "
            "incomplete; "
            "take the checkpoint's original config.json"
        )
    return value


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)
