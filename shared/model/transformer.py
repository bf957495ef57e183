"""The decoder of every family: embedding, layers, head. The engines drive the layers.

Shapes: T tokens, E hidden width, V vocabulary, D head size.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - the name torch users know
from torch import Tensor

from shared.kv.geometry import KvGeometry
from shared.model.config import ModelConfig
from shared.model.layers import DecoderLayer, LayerWeights
from shared.model.product import linear
from shared.model.rope import Rope, RopeTable
from shared.types.model_identity import ModelIdentity


class Transformer:
    """A checkpoint in memory."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        embedding_VE: Tensor,
        layers: list[LayerWeights],
        norm_E: Tensor,
        head_VE: Tensor,
        model_hash: str,
    ) -> None:
        assert len(layers) == config.num_layers
        self.config = config
        self.layers = [DecoderLayer(weights, config) for weights in layers]
        self.embedding_VE = embedding_VE
        self.norm_E = norm_E
        self.head_VE = head_VE
        self._hash = model_hash
        self._rope = Rope(config.rope, head_dim=config.head_dim, device=embedding_VE.device)

    @property
    def dtype(self) -> torch.dtype:
        """Type of weights, activations and KV."""
        return self.embedding_VE.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embedding_VE.device

    def embed(self, ids_T: Tensor) -> Tensor:
        """Embeddings [T, E] of token ids (int64, on the model's device)."""
        return F.embedding(ids_T, self.embedding_VE)

    def rope(self, positions_T: Tensor, *, context_tokens: int) -> RopeTable:
        """Rotation table of `positions_T`.

        Args:
            positions_T: original positions, integers.
            context_tokens: original prompt length (never a kept count); the dynamic kind
                stretches by it.
        """
        return self._rope.table(positions_T, context_tokens=context_tokens, dtype=self.dtype)

    def prompt_rope(self, prompt_tokens: int) -> RopeTable:
        """Rotation table of all positions of a prompt, from 0; never written, as it is kept."""
        return self._rope.prompt_table(prompt_tokens, dtype=self.dtype)

    def logits(self, x_TE: Tensor) -> Tensor:
        """Float32 logits [T, V] of the last layer's output."""
        normed_TE = F.rms_norm(x_TE, self.norm_E.shape, self.norm_E, self.config.rms_norm_eps)
        return linear(normed_TE, self.head_VE).float()

    def identity(self, name: str) -> ModelIdentity:
        """What another worker's model must equal for KV to move, under the served name `name`."""
        return ModelIdentity(
            name=name,
            model_hash=self._hash,
            dtype=dtype_name(self.dtype),
            num_layers=self.config.num_layers,
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
            rope=self.config.rope.canonical(),
        )

    def geometry(self) -> KvGeometry:
        """Shape of this model's KV cache."""
        return KvGeometry(
            num_layers=self.config.num_layers,
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
            dtype=dtype_name(self.dtype),
        )


def dtype_name(dtype: torch.dtype) -> str:
    """`float32`, `bfloat16` or `float16`."""
    return str(dtype).removeprefix("torch.")
