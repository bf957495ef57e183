"""Full attention in every layer: the baseline, and the `full` and `prune` modes."""

import torch

from decode_service.sparsity.base import LayerRole
from shared.types.methods import SparsityParams


class DensePolicy:
    """Every layer reads every page.

    Args:
        num_layers: decoder layers of the model.
    """

    name = "dense"

    def __init__(self, *, num_layers: int) -> None:
        self.roles = (LayerRole.FULL,) * num_layers

    @classmethod
    def build(cls, params: SparsityParams | None, *, num_layers: int) -> "DensePolicy":
        """Makes the policy; it has no parameters, those of another method must not be given.

        Raises:
            AssertionError: parameters were given.
        """
        assert params is None, "the dense policy takes no parameters"
        return cls(num_layers=num_layers)

    def num_selected(self, num_pages: int) -> int:
        """All of them."""
        return num_pages

    def select(self, scores_P: torch.Tensor) -> torch.Tensor:
        """Every page, whatever its score."""
        return torch.arange(scores_P.shape[0], device=scores_P.device)
