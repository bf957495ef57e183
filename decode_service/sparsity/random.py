"""Random: sparse layers read pages drawn by lot. A control: the price of choosing unseen.

Full layers and forced pages (page 0 and the last L) are those of DELTA; only the pages that DELTA
would choose are drawn, uniformly and without repeats. A draw depends on the seed, the number of
generated tokens, the layer and the layer's pages, and on nothing else: a step that is repeated
draws the same pages, and two layers of a step draw apart.

Shapes: U pages of a selection.
"""

from hashlib import blake2b

import torch

from decode_service.sparsity.stateless import Reading, StatelessPolicy

_SEED_BYTES = 4
"""Torch's generator on the CPU takes no more of a seed."""


class RandomPolicy(StatelessPolicy):
    """Page 0, the last L pages, and others by lot, K in all."""

    name = "random"

    def pages(self, reading: Reading) -> torch.Tensor:
        """Forced pages and drawn ones, [min(P, K)]; drawn on the CPU, so equal on every device."""
        budget, recency = self.params.page_budget, self.params.recency_pages
        num_pages = reading.num_pages
        if num_pages <= budget:
            return torch.arange(num_pages, device=reading.q_HD.device)
        label = f"{self.params.seed}/{reading.generated}/{reading.layer}".encode()
        digest = blake2b(label, digest_size=_SEED_BYTES).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
        # Pages 1..P-L-1 are free; all of them are shuffled and the first few win.
        shuffled = torch.randperm(num_pages - recency - 1, generator=generator) + 1
        pages_U = torch.empty(budget, dtype=torch.int64)
        pages_U[0] = 0
        pages_U[1 : budget - recency] = shuffled[: budget - recency - 1].sort().values
        pages_U[budget - recency :] = torch.arange(num_pages - recency, num_pages)
        return pages_U.to(reading.q_HD.device)
