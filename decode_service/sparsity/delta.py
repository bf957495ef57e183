"""DELTA: a few Δ-layers read everything and choose the pages that the layers after them read.

Paper: https://arxiv.org/abs/2510.09883. A Δ-layer's own output is full attention; it redoes its
choice at every step and replaces the previous one whole. Deviation: page 0 is always read, at the
cost of one page of the budget, because pruned prompts make a lost first token costly.
"""

import torch

from decode_service.sparsity.base import LayerRole
from decode_service.sparsity.page_scores import top_pages
from shared.errors import ConfigError
from shared.types.methods import SparsityParams


class DeltaPolicy:
    """Roles by the list of full layers F, pages by the scores of the last Δ-layer.

    Args:
        params: F, page budget K, recency pages L.
        num_layers: decoder layers of the model.

    Raises:
        ConfigError: F names a layer that the model does not have.
    """

    name = "delta"

    def __init__(self, params: SparsityParams, *, num_layers: int) -> None:
        if params.full_layers[-1] >= num_layers:
            raise ConfigError(
                f"full_layers names layer {params.full_layers[-1]} of a model of {num_layers} "
                f"layers (0..{num_layers - 1}): the profile belongs to another model"
            )
        self._params = params
        self.roles = layer_roles(params.full_layers, num_layers=num_layers)

    @classmethod
    def build(cls, params: SparsityParams | None, *, num_layers: int) -> "DeltaPolicy":
        """Makes the policy from a request's effective parameters, which must be given.

        Raises:
            ConfigError: F names a layer that the model does not have.
        """
        assert params is not None, "DELTA needs parameters"
        return cls(params, num_layers=num_layers)

    def num_selected(self, num_pages: int) -> int:
        """min(P, K)."""
        return min(num_pages, self._params.page_budget)

    def select(self, scores_P: torch.Tensor) -> torch.Tensor:
        """Page 0, the last L pages and the best of the rest."""
        return top_pages(
            scores_P, budget=self._params.page_budget, recency=self._params.recency_pages
        )


def layer_roles(full_layers: tuple[int, ...], *, num_layers: int) -> tuple[LayerRole, ...]:
    """Role of each layer; a full layer before a sparse one plans, so the last layer never does."""
    full = frozenset(full_layers)

    def role(layer: int) -> LayerRole:
        if layer not in full:
            return LayerRole.SPARSE
        plans = layer + 1 < num_layers and layer + 1 not in full
        return LayerRole.DELTA if plans else LayerRole.FULL

    return tuple(role(layer) for layer in range(num_layers))
