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

from decode_service.sparsity.base import LayerRole
from decode_service.sparsity.stateless import Reading, StatelessPolicy


class StreamingPolicy(StatelessPolicy):
    """No layer is full, whatever F says."""

    name = "streaming"

    def layer_roles(self, num_layers: int) -> tuple[LayerRole, ...]:
        """SPARSE, every one."""
        return (LayerRole.SPARSE,) * num_layers

    def pages(self, reading: Reading) -> torch.Tensor:
        """Page 0 and the last K - 1, [min(P, K)]."""
        count = min(reading.num_pages, self.params.page_budget)
        first = reading.num_pages - count
        pages_U = torch.arange(first, reading.num_pages, device=reading.q_HD.device)
        pages_U[0] = 0
        return pages_U
