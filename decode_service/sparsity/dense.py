"""Full attention in every layer: the baseline, and the `full` and `prune` modes."""

import torch

from decode_service.sparsity.base import LayerKv, LayerRole, RowFacts, Selection, UnobservedStep
from shared.types.methods import SparsityParams


class DensePolicy:
    """Every layer reads every slot.

    Args:
        params: play no part.
        num_layers: decoder layers of the model.
    """

    name = "dense"

    def __init__(self, params: SparsityParams | None = None, *, num_layers: int) -> None:
        del params
        self._row = DenseRow(num_layers=num_layers)

    def begin(self, facts: RowFacts, *, force: bool = False) -> "DenseRow":
        """See `PagePolicy.begin`; there is nothing to force, and rows share one."""
        del force
        assert facts.num_layers == len(self._row.roles), "the policy was built for this model"
        return self._row


class DenseRow:
    """Full attention at work on any row: it knows nothing of it.

    Args:
        num_layers: decoder layers of the model.
    """

    def __init__(self, *, num_layers: int) -> None:
        self.roles = (LayerRole.FULL,) * num_layers
        self._step = DenseStep()

    def step(self, *, generated: int) -> "DenseStep":
        """See `RowPolicy.step`."""
        del generated
        return self._step


class DenseStep(UnobservedStep):
    """Any step of full attention."""

    def select(self, layer: int, q_HD: torch.Tensor, kv: LayerKv) -> Selection | None:
        """Every slot."""
        del layer, q_HD, kv
        return None

    def commit(self) -> None:
        """Nothing is remembered."""
