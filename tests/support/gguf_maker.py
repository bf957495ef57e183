"""Writes small GGUF files the way llama.cpp's converter does, query and key rows interleaved."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import Tokenizer
from torch import Tensor

from shared.model.config import ModelConfig
from shared.model.gguf_file import _NAMES, _TOP_NAMES

_PARTS = {hf: name for name, hf in _NAMES.items()}
_TOPS = {hf: name for name, hf in _TOP_NAMES.items()}


def write_gguf(
    path: Path,
    config: ModelConfig,
    tensors: dict[str, Tensor],
    *,
    tokenizer: Tokenizer,
    fields: dict[str, Any] | None = None,
) -> Path:
    """A GGUF file of `config`; `fields` adds or (with None) drops metadata of the architecture."""
    writer = gguf.GGUFWriter(path, config.family)
    for key, value in (_shape_fields(config) | (fields or {})).items():
        if value is None:
            continue
        full = key if key.startswith("tokenizer.") else f"{config.family}.{key}"
        add: dict[type, Any] = {
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
        }
        add[type(value)](full, value)
    _add_vocabulary(writer, tokenizer)
    for name, tensor in tensors.items():
        writer.add_tensor(_gguf_name(name), _interleaved(name, tensor, config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _shape_fields(config: ModelConfig) -> dict[str, Any]:
    return {
        "block_count": config.num_layers,
        "context_length": config.max_position,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope.theta,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.chat_template": "{{ messages[0].content }}",
    }


def _add_vocabulary(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    import json

    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    specials = {added.content for added in tokenizer.get_added_tokens_decoder().values()}
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in specials else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])


def _gguf_name(name: str) -> str:
    if name in _TOPS:
        return _TOPS[name]
    if not name.startswith("model."):
        return name
    _, _, index, *middle, ending = name.split(".")
    return f"blk.{index}.{_PARTS['.'.join(middle)]}.{ending}"


def _interleaved(name: str, tensor: Tensor, config: ModelConfig) -> np.ndarray[Any, Any]:
    values = tensor.numpy()
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
    part = name.split(".")[-2]
    if config.family != "llama" or part not in heads:
        return values
    split = values.reshape(heads[part], 2, -1, *values.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(values.shape))
