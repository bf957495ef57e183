"""StreamingLLM in its absolute mode: every layer reads its first page and its most recent ones.

Paper: https://arxiv.org/abs/2309.17453. The paper keeps the first four tokens and a window of
recent ones in every layer, stores keys without their rotation, and rotates them by their place in
the cache, so that no distance exceeds the window. Here keys arrive already rotated at their
original positions and stay so: that is the absolute mode, with page 0 as the sinks and the last
K - 1 pages as the window. A user's measurements (issue 74 of mit-han-lab/streaming-llm) say that
most of the quality beyond the training length comes from the renumbering: within that length this
is a fair rival, beyond it a weaker one than the paper's. Nothing is evicted, only left unread.

Shapes: U pages of a selection.
"""

import torch

from decode_service.sparsity.base import LayerRole, RowFacts
from decode_service.sparsity.stateless import Reading, StatelessRow
from shared.types.methods import SparsityParams


class StreamingPolicy:
    """No layer is full, whatever F says.

    Args:
        params: page budget K.
        num_layers: decoder layers of the model.
    """

    name = "streaming"

    def __init__(self, params: SparsityParams, *, num_layers: int) -> None:
        self._budget = params.page_budget
        self._num_layers = num_layers

    @classmethod
    def build(cls, params: SparsityParams | None, *, num_layers: int) -> "StreamingPolicy":
        """Makes the policy from a request's effective parameters, which must be given."""
        assert params is not None, "streaming needs parameters"
        return cls(params, num_layers=num_layers)

    def begin(self, facts: RowFacts, *, force: bool = False) -> StatelessRow:
        """Takes up a row; it keeps nothing of it."""
        del facts
        return StatelessRow(
            roles=(LayerRole.SPARSE,) * self._num_layers,
            budget=self._budget,
            choose=self._pages,
            force=force,
        )

    def _pages(self, reading: Reading) -> torch.Tensor:
        """Page 0 and the last K - 1, [min(P, K)]."""
        count = min(reading.num_pages, self._budget)
        first = reading.num_pages - count
        pages_U = torch.arange(first, reading.num_pages, device=reading.q_HD.device)
        pages_U[0] = 0
        return pages_U
