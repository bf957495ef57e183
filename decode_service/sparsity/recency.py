"""Recency: sparse layers read the most recent pages. A control: it knows where, and not what.

Full layers are those of DELTA, so that the two differ in the choice alone; page 0 is not forced.

Shapes: U pages of a selection.
"""

import torch

from decode_service.sparsity.stateless import Reading, StatelessPolicy


class RecencyPolicy(StatelessPolicy):
    """The last K pages."""

    name = "recency"

    def pages(self, reading: Reading) -> torch.Tensor:
        """The last min(P, K)."""
        first = max(0, reading.num_pages - self.params.page_budget)
        return torch.arange(first, reading.num_pages, device=reading.q_HD.device)
