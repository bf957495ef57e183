"""Recency: sparse layers read the most recent pages. A control: it knows where, and not what.

Full layers are those of DELTA, so that the two differ in the choice alone; page 0 is not forced.

Shapes: U pages of a selection.
"""

import torch

from decode_service.sparsity.base import RowFacts
from decode_service.sparsity.stateless import Reading, StatelessRow, full_or_sparse
from shared.types.methods import SparsityParams


class RecencyPolicy:
    """The last K pages.

    Args:
        params: F and page budget K.
        num_layers: decoder layers of the model.

    Raises:
        ConfigError: F names a layer that the model does not have.
    """

    name = "recency"

    def __init__(self, params: SparsityParams, *, num_layers: int) -> None:
        self._budget = params.page_budget
        self._roles = full_or_sparse(params.full_layers, num_layers=num_layers)

    @classmethod
    def build(cls, params: SparsityParams | None, *, num_layers: int) -> "RecencyPolicy":
        """Makes the policy from a request's effective parameters, which must be given.

        Raises:
            ConfigError: F names a layer that the model does not have.
        """
        assert params is not None, "recency needs parameters"
        return cls(params, num_layers=num_layers)

    def begin(self, facts: RowFacts, *, force: bool = False) -> StatelessRow:
        """Takes up a row; it keeps nothing of it."""
        del facts
        return StatelessRow(roles=self._roles, budget=self._budget, choose=self._pages, force=force)

    def _pages(self, reading: Reading) -> torch.Tensor:
        """The last min(P, K)."""
        first = max(0, reading.num_pages - self._budget)
        return torch.arange(first, reading.num_pages, device=reading.q_HD.device)
