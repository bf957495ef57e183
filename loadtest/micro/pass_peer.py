"""transformers on the very weights of one of our models: the peer of the bench of a prompt's pass.

Shapes: T tokens, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from shared.model.state import tensor_views
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
        made.load_state_dict(
            tensor_views(model), assign=True, strict=not model.config.tie_embeddings
        )
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
