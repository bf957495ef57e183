"""Products of a step with the model's weights, each by a kernel of ours or by the library's.

Shapes: B seats, E hidden width, I inputs of a product, O outputs, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import torch
import torch.nn.functional as F  # noqa: N812 - the name torch users know
from torch import Tensor

from decode_service.kernels.row_maths import gate, rms_norm
from decode_service.kernels.thin_product import (
    Ending,
    PartRoom,
    ProductPlan,
    RowNorm,
    row_product,
    tile_product,
)
from shared.model.layers import LayerWeights
from shared.model.transformer import Transformer


class ProductKind(StrEnum):
    """A product of every layer, or the last one of a step."""

    QKV = "qkv"
    """Norm, queries, keys and values."""
    OUT = "out"
    """Attention's output, added to the residual."""
    GATE_UP = "gate_up"
    """Norm, both halves of the MLP and its gate."""
    DOWN = "down"
    """The MLP's output, added to the residual."""
    HEAD = "head"
    """Norm and logits."""


ProductWays = Mapping[ProductKind, ProductPlan | None]
"""The plan of our kernel for each kind; None, or none for it: the library's product."""

BY_LIBRARY: ProductWays = {}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Matrix:
    """What rows are multiplied by."""

    weight_OI: Tensor
    bias_O: Tensor | None = None
    norm: RowNorm | None = None
    """Of the rows, before."""


class StepProducts:
    """The products of steps of one number of rows.

    Args:
        model: whose weights.
        ways: how each is computed; with a plan only for up to `MOST_ROWS` rows.
        room: of kernels of ours for more rows than one; None: none of them is used for such.
    """

    def __init__(
        self, model: Transformer, *, ways: ProductWays = BY_LIBRARY, room: PartRoom | None = None
    ) -> None:
        self._model = model
        self._ways = ways
        self._room = room

    def project(self, x_BE: Tensor, weights: LayerWeights) -> Tensor:
        """Normed and multiplied by query, key and value weights: [B, O]."""
        plan = self._ways.get(ProductKind.QKV)
        if plan is None:
            normed_BE = self._norm(x_BE, weights.input_norm_E)
            return F.linear(normed_BE, weights.qkv, weights.qkv_bias)
        out_BO = x_BE.new_empty(x_BE.shape[0], weights.qkv.shape[0])
        matrix = _Matrix(
            weight_OI=weights.qkv, bias_O=weights.qkv_bias, norm=self._normed(weights.input_norm_E)
        )
        self._thin(x_BE, matrix, plan, out_BO=out_BO)
        return out_BO

    def add_attention(self, x_BE: Tensor, out_BI: Tensor, weights: LayerWeights) -> None:
        """Adds attention's output to the residual."""
        self._add(ProductKind.OUT, x_BE, out_BI, weights.out)

    def gated(self, x_BE: Tensor, weights: LayerWeights) -> Tensor:
        """Normed, multiplied by gate and up weights, gated: [B, I]."""
        hidden_BI = x_BE.new_empty(x_BE.shape[0], weights.gate_up.shape[0] // 2)
        plan = self._ways.get(ProductKind.GATE_UP)
        if plan is None:
            gate(F.linear(self._norm(x_BE, weights.post_norm_E), weights.gate_up), out_BI=hidden_BI)
        else:
            norm = self._normed(weights.post_norm_E)
            matrix = _Matrix(weight_OI=weights.gate_up, norm=norm)
            self._thin(x_BE, matrix, plan, out_BO=hidden_BI, ending=Ending.GATE)
        return hidden_BI

    def add_hidden(self, x_BE: Tensor, hidden_BI: Tensor, weights: LayerWeights) -> None:
        """Adds the MLP's output to the residual."""
        self._add(ProductKind.DOWN, x_BE, hidden_BI, weights.down)

    def logits(self, x_BE: Tensor) -> Tensor:
        """Float32 logits [B, V] of the last layer's output."""
        model, plan = self._model, self._ways.get(ProductKind.HEAD)
        if plan is None:
            return model.logits(x_BE)
        size = (x_BE.shape[0], model.head_VE.shape[0])
        logits_BV = torch.empty(size, dtype=torch.float32, device=x_BE.device)
        matrix = _Matrix(weight_OI=model.head_VE, norm=self._normed(model.norm_E))
        self._thin(x_BE, matrix, plan, out_BO=logits_BV)
        return logits_BV

    def _add(self, kind: ProductKind, x_BE: Tensor, of_BI: Tensor, weight_EI: Tensor) -> None:
        plan = self._ways.get(kind)
        if plan is None:
            x_BE.addmm_(of_BI, weight_EI.t())
        else:
            self._thin(of_BI, _Matrix(weight_OI=weight_EI), plan, out_BO=x_BE, ending=Ending.ADD)

    def _thin(
        self,
        x_BI: Tensor,
        matrix: _Matrix,
        plan: ProductPlan,
        *,
        out_BO: Tensor,
        ending: Ending = Ending.STORE,
    ) -> None:
        """By a kernel of ours; one row is normed in the same launch."""
        weight_OI, bias_O, norm = matrix.weight_OI, matrix.bias_O, matrix.norm
        if x_BI.shape[0] == 1:
            row_product(
                x_BI, weight_OI, plan=plan, out_BO=out_BO, ending=ending, norm=norm, bias_O=bias_O
            )
            return
        room = self._room
        assert room is not None, "programs of more rows share sums"
        if norm is not None:
            x_BI = self._norm(x_BI, norm.scale_I)
        tile_product(
            x_BI, weight_OI, plan=plan, room=room, out_BO=out_BO, ending=ending, bias_O=bias_O
        )

    def _norm(self, x_BE: Tensor, scale_E: Tensor) -> Tensor:
        out_BE = torch.empty_like(x_BE)
        rms_norm(x_BE, scale_E, eps=self._model.config.rms_norm_eps, out_BE=out_BE)
        return out_BE

    def _normed(self, scale_I: Tensor) -> RowNorm:
        return RowNorm(scale_I=scale_I, eps=self._model.config.rms_norm_eps)
