"""One decoder layer: attention products and gated MLP, without the attention itself.

Shapes: T tokens (or rows of a decode batch), E hidden width, H query heads, G KV heads,
D head size, I MLP width.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the name torch users know
from torch import Tensor

from shared.model.config import ModelConfig
from shared.model.product import add_linear, linear
from shared.model.rope import RopeTable, rotate

_MLP_ROWS = 1024
"""Tokens that pass the MLP at once: its wide intermediate then stays near the processor's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """Weights of one layer, products fused; every matrix is [out, in]."""

    input_norm_E: Tensor
    """Scale of the norm before attention."""
    qkv: Tensor
    """[(H + 2G) D, E]: queries, keys, values."""
    qkv_bias: Tensor | None
    """[(H + 2G) D] (Qwen2)."""
    q_norm_D: Tensor | None
    """Scale of the per-head query norm (Qwen3)."""
    k_norm_D: Tensor | None
    """Scale of the per-head key norm (Qwen3)."""
    out: Tensor
    """[E, H D]."""
    post_norm_E: Tensor
    """Scale of the norm before the MLP."""
    gate_up: Tensor
    """[2 I, E]: gate, then up."""
    down: Tensor
    """[E, I]."""


class DecoderLayer:
    """Computes what surrounds attention; callers bring the attention and own the KV."""

    def __init__(self, weights: LayerWeights, config: ModelConfig) -> None:
        self.weights = weights
        self._eps = config.rms_norm_eps
        self._heads = config.num_heads
        self._kv_heads = config.num_kv_heads
        self._head_dim = config.head_dim
        self._intermediate = config.intermediate_size

    def qkv(self, x_TE: Tensor, rope: RopeTable) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [T, H, D] and keys [T, G, D], both rotated, and values [T, G, D].

        They are views of shared memory: copy keys and values that must outlive the queries.
        """
        heads_T_D = self._heads_of(x_TE, first=0, last=self._heads + 2 * self._kv_heads)
        turned = self._rotate(heads_T_D[:, : self._heads + self._kv_heads], rope, num_q=self._heads)
        values_TGD = heads_T_D[:, self._heads + self._kv_heads :]
        return turned[:, : self._heads], turned[:, self._heads :], values_TGD

    def kv(self, x_TE: Tensor, rope: RopeTable) -> tuple[Tensor, Tensor]:
        """Rotated keys and values, [T, G, D] each, of tokens that need no queries."""
        heads_T_D = self._heads_of(x_TE, first=self._heads, last=self._heads + 2 * self._kv_heads)
        keys_TGD = self._rotate(heads_T_D[:, : self._kv_heads], rope, num_q=0)
        return keys_TGD, heads_T_D[:, self._kv_heads :]

    def q(self, x_TE: Tensor, rope: RopeTable) -> Tensor:
        """Rotated queries [T, H, D] of tokens whose KV is already there."""
        return self._rotate(
            self._heads_of(x_TE, first=0, last=self._heads), rope, num_q=self._heads
        )

    def finish(self, x_TE: Tensor, attn_THD: Tensor) -> Tensor:
        """`x_TE` plus attention output and MLP, in a new [T, E]; the argument is left alone."""
        w = self.weights
        attn = attn_THD.reshape(attn_THD.shape[0], self._heads * self._head_dim)
        y_TE = add_linear(x_TE, attn, w.out)
        for start in range(0, y_TE.shape[0], _MLP_ROWS):
            self._add_mlp(y_TE[start : start + _MLP_ROWS])
        return y_TE

    def _add_mlp(self, y_TE: Tensor) -> None:
        w = self.weights
        gate_up = linear(self._norm(y_TE, w.post_norm_E), w.gate_up)
        hidden_TI = F.silu(gate_up[:, : self._intermediate])
        hidden_TI.mul_(gate_up[:, self._intermediate :])
        add_linear(y_TE, hidden_TI, w.down, out_TO=y_TE)

    def _heads_of(self, x_TE: Tensor, *, first: int, last: int) -> Tensor:
        """Heads first..last-1 of the fused product, [T, last - first, D], before rotation."""
        w, d = self.weights, self._head_dim
        rows = slice(first * d, last * d)
        bias = None if w.qkv_bias is None else w.qkv_bias[rows]
        flat = linear(self._norm(x_TE, w.input_norm_E), w.qkv[rows], bias)
        return flat.view(x_TE.shape[0], last - first, d)

    def _rotate(self, heads_T_D: Tensor, rope: RopeTable, *, num_q: int) -> Tensor:
        w = self.weights
        if w.q_norm_D is not None and w.k_norm_D is not None:
            parts = (
                self._norm(heads_T_D[:, :num_q], w.q_norm_D),
                self._norm(heads_T_D[:, num_q:], w.k_norm_D),
            )
            heads_T_D = torch.cat(parts, dim=1)
        return rotate(heads_T_D, rope)

    def _norm(self, x: Tensor, scale: Tensor) -> Tensor:
        return F.rms_norm(x, scale.shape, scale, self._eps)
