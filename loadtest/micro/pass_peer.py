"""transformers on the very weights of one of our models: the peer of the bench of a prompt's pass.

Shapes: T tokens, V vocabulary, D head size.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from shared.model.transformer import Transformer

PEER_KERNELS = {
    "transformers (cudnn)": SDPBackend.CUDNN_ATTENTION,
    "transformers (flash)": SDPBackend.FLASH_ATTENTION,
}
"""Arms of the peer: scaled dot product attention by one of PyTorch's kernels."""


class TransformersPass:
    """A prompt through transformers: sdpa attention, a KV cache, one row of logits.

    Args:
        model: its weights are shared, not copied.
        kernel: what computes attention; None leaves it to PyTorch.
    """

    def __init__(self, model: Transformer, *, kernel: SDPBackend | None = None) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415  not needed else

        raw = model.config.to_dict()
        config = AutoConfig.for_model(raw.pop("model_type"), **raw)
        with torch.device(model.device):
            made: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, attn_implementation="sdpa", dtype=model.dtype
            )
        made.load_state_dict(_views(model), assign=True, strict=not model.config.tie_embeddings)
        made.tie_weights()
        self._model = made.eval().requires_grad_(requires_grad=False)
        self._kernel = kernel

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return torch.device(self._model.device)

    def by(self, kernel: SDPBackend) -> "TransformersPass":
        """The same model with another kernel."""
        other = object.__new__(TransformersPass)
        other._model, other._kernel = self._model, kernel
        return other

    @torch.inference_mode()
    def run(self, ids_T: Tensor) -> tuple[Tensor, Any]:
        """Logits [V] of the next token, float32, and the KV cache."""
        if self._kernel is None:
            return self._logits(ids_T)
        with sdpa_kernel(self._kernel):
            return self._logits(ids_T)

    def _logits(self, ids_T: Tensor) -> tuple[Tensor, Any]:
        output = self._model(ids_T[None], use_cache=True, logits_to_keep=1)
        return output.logits[0, -1].float(), output.past_key_values


def _views(model: Transformer) -> dict[str, Tensor]:
    """Our tensors under transformers' names; rows of the fused matrices are views."""
    config, d = model.config, model.config.head_dim
    sizes = [config.num_heads * d, config.num_kv_heads * d, config.num_kv_heads * d]
    found = {"model.embed_tokens.weight": model.embedding_VE, "model.norm.weight": model.norm_E}
    if not config.tie_embeddings:
        found["lm_head.weight"] = model.head_VE
    for index, layer in enumerate(model.layers):
        w, prefix = layer.weights, f"model.layers.{index}"
        found[f"{prefix}.input_layernorm.weight"] = w.input_norm_E
        found[f"{prefix}.post_attention_layernorm.weight"] = w.post_norm_E
        found[f"{prefix}.self_attn.o_proj.weight"] = w.out
        found[f"{prefix}.mlp.down_proj.weight"] = w.down
        for part, rows in zip(("gate", "up"), w.gate_up.chunk(2), strict=True):
            found[f"{prefix}.mlp.{part}_proj.weight"] = rows
        for part, rows in zip("qkv", torch.split(w.qkv, sizes), strict=True):
            found[f"{prefix}.self_attn.{part}_proj.weight"] = rows
        if w.qkv_bias is not None:
            for part, rows in zip("qkv", torch.split(w.qkv_bias, sizes), strict=True):
                found[f"{prefix}.self_attn.{part}_proj.bias"] = rows
        if w.q_norm_D is not None and w.k_norm_D is not None:
            found[f"{prefix}.self_attn.q_norm.weight"] = w.q_norm_D
            found[f"{prefix}.self_attn.k_norm.weight"] = w.k_norm_D
    return found
