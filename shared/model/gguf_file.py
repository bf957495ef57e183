"""Reads a GGUF file of a Llama-like decoder: configuration, tokenizer and dequantised weights.

llama.cpp interleaves the two rotation halves of query and key rows for the llama architecture;
that is undone here.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize
from torch import Tensor

from shared.errors import ModelLoadError
from shared.model.config import ModelConfig
from shared.model.rope_config import rope_from_dict
from shared.model.tokenizer_build import Vocabulary

_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_CONTROL_TYPES = {3, 4}
"""Token types of control and user-defined tokens."""
_END_TEXTS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>")
"""Control tokens that end an answer, wherever a vocabulary has them."""


class GgufFile:
    """One GGUF file, memory-mapped.

    Raises:
        ModelLoadError: the file is missing, damaged, or of an architecture that is not served.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = GGUFReader(path)
        except (OSError, ValueError, IndexError) as error:
            raise ModelLoadError(
                f"{path} is not a readable GGUF file ({error}): it is damaged or was cut short; "
                "download it again"
            ) from error
        self._arch = str(self._required("general.architecture"))

    def config(self) -> ModelConfig:
        """The decoder's shape."""
        shapes = {tensor.name: tensor.shape for tensor in self._reader.tensors}
        if "rope_freqs.weight" in shapes:
            raise ModelLoadError(
                f"{self.path} stores ready-made rotary factors, from which the checkpoint's "
                "parameters cannot be told; "
                "use the model's safetensors folder instead"
            )
        heads = self._int("attention.head_count")
        hidden = self._int("embedding_length")
        context = self._int("context_length")
        raw = {
            "model_type": self._arch,
            "vocab_size": int(shapes["token_embd.weight"][1]),
            "hidden_size": hidden,
            "intermediate_size": self._int("feed_forward_length"),
            "num_hidden_layers": self._int("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._int("attention.head_count_kv", default=heads),
            "head_dim": self._int("attention.key_length", default=hidden // heads),
            "rms_norm_eps": _short(self._arch_value("attention.layer_norm_rms_epsilon")),
            "tie_word_embeddings": "output.weight" not in shapes,
            "max_position_embeddings": context,
            "sliding_window": self._arch_value("attention.sliding_window"),
            "rope_parameters": self._rope(context),
            "bos_token_id": self._value("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self._end_ids(),
        }
        rope_from_dict(raw, max_position=context)
        return ModelConfig.from_dict(raw)

    def vocabulary(self, config: ModelConfig) -> Vocabulary:
        """The tokenizer's parts.

        Raises:
            ModelLoadError: the vocabulary is not byte-level BPE.
        """
        kind = self._required("tokenizer.ggml.model")
        if kind != "gpt2":
            raise ModelLoadError(
                f"{self.path} holds a {kind!r} vocabulary; only byte-level BPE ('gpt2') is read "
                "from GGUF; "
                "use the model's safetensors folder with its tokenizer.json instead"
            )
        types = self._required("tokenizer.ggml.token_type")
        merges = [merge.split(" ", 1) for merge in self._required("tokenizer.ggml.merges")]
        return Vocabulary(
            tokens=self._required("tokenizer.ggml.tokens"),
            merges=[(left, right) for left, right in merges],
            specials=[index for index, kind in enumerate(types) if kind in _CONTROL_TYPES],
            split=str(self._value("tokenizer.ggml.pre") or "default"),
            bos=config.bos_token_id,
            eos=self._value("tokenizer.ggml.eos_token_id"),
            pad=self._value("tokenizer.ggml.padding_token_id"),
            unk=self._value("tokenizer.ggml.unknown_token_id"),
            add_bos=bool(self._value("tokenizer.ggml.add_bos_token")),
            chat_template=self._value("tokenizer.chat_template"),
            model_max_length=config.max_position,
        )

    def tensors(
        self, config: ModelConfig, *, progress: Callable[[int, int], None]
    ) -> dict[str, Tensor]:
        """Float32 tensors under transformers' names; `progress(done, total)` counts tensors."""
        out: dict[str, Tensor] = {}
        total = len(self._reader.tensors)
        for done, tensor in enumerate(self._reader.tensors, start=1):
            out[_hf_name(tensor.name)] = self._dequantise(tensor, config)
            progress(done, total)
        return out

    def _dequantise(self, tensor: ReaderTensor, config: ModelConfig) -> Tensor:
        values = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if self._arch == "llama" and ".attn_q." in tensor.name:
            values = _halves(values, heads=config.num_heads)
        if self._arch == "llama" and ".attn_k." in tensor.name:
            values = _halves(values, heads=config.num_kv_heads)
        return torch.from_numpy(values)

    def _rope(self, context: int) -> dict[str, Any]:
        theta = _short(self._arch_value("rope.freq_base") or 10000.0)
        kind = self._arch_value("rope.scaling.type")
        out: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
        if kind in {None, "none"}:
            return out
        original = self._arch_value("rope.scaling.original_context_length") or context
        factor = _short(self._arch_value("rope.scaling.factor") or 1.0)
        return out | {
            "rope_type": kind,
            "factor": factor,
            "original_max_position_embeddings": original,
        }

    def _end_ids(self) -> list[int]:
        tokens: list[str] = self._required("tokenizer.ggml.tokens")
        types = self._required("tokenizer.ggml.token_type")
        named = [self._value(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot")]
        known = {
            text: index
            for index, (text, kind) in enumerate(zip(tokens, types, strict=True))
            if kind in _CONTROL_TYPES and text in _END_TEXTS
        }
        found = [*named, *(known.get(text) for text in _END_TEXTS)]
        return list(dict.fromkeys(index for index in found if index is not None))

    def _int(self, key: str, *, default: int | None = None) -> int:
        value = self._arch_value(key)
        if value is None and default is not None:
            return default
        return int(self._required(f"{self._arch}.{key}") if value is None else value)

    def _arch_value(self, key: str) -> Any:  # noqa: ANN401 - metadata is of any type
        return self._value(f"{self._arch}.{key}")

    def _value(self, key: str) -> Any:  # noqa: ANN401 - metadata is of any type
        field = self._reader.fields.get(key)
        return None if field is None else field.contents()

    def _required(self, key: str) -> Any:  # noqa: ANN401 - metadata is of any type
        value = self._value(key)
        if value is None:
            raise ModelLoadError(
                f"{self.path} has no {key!r}: it is not a whole language model; download the file "
                "again"
            )
        return value


def _halves(values: np.ndarray[Any, Any], *, heads: int) -> np.ndarray[Any, Any]:
    """Rows of each head from interleaved pairs back to two halves."""
    rows = values.shape[0] // heads
    pairs = values.reshape(heads, rows // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(values.shape))


def _short(value: float) -> float:
    """The shortest decimal that is this float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _hf_name(name: str) -> str:
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _NAMES:  # noqa: PLR2004 - blk.N.part.weight
        return f"model.layers.{parts[1]}.{_NAMES[parts[2]]}.{parts[3]}"
    raise ModelLoadError(
        f"the GGUF file holds a tensor {name!r} that no family served here has: its architecture "
        "is a variant; "
        "choose another checkpoint"
    )
