"""Random: sparse layers read pages drawn by lot. A control: the price of choosing unseen.

Full layers and forced pages (page 0 and the last L) are those of DELTA; only the pages that DELTA
would choose are drawn, uniformly and without repeats. A draw depends on the seed, the number of
generated tokens, the layer and the layer's pages, and on nothing else: a step that is repeated
draws the same pages, and two layers of a step draw apart.

Shapes: U pages of a selection.
"""

from hashlib import blake2b

import torch

from decode_service.sparsity.base import RowFacts
from decode_service.sparsity.stateless import Reading, StatelessRow, full_or_sparse
from shared.types.methods import SparsityParams

_SEED_BYTES = 4
"""Torch's generator on the CPU takes no more of a seed."""


class RandomPolicy:
    """Page 0, the last L pages, and others by lot, K in all.

    Args:
        params: F, page budget K, recency pages L, seed.
        num_layers: decoder layers of the model.

    Raises:
        ConfigError: F names a layer that the model does not have.
    """

    name = "random"

    def __init__(self, params: SparsityParams, *, num_layers: int) -> None:
        self._params = params
        self._roles = full_or_sparse(params.full_layers, num_layers=num_layers)

    @classmethod
    def build(cls, params: SparsityParams | None, *, num_layers: int) -> "RandomPolicy":
        """Makes the policy from a request's effective parameters, which must be given.

        Raises:
            ConfigError: F names a layer that the model does not have.
        """
        assert params is not None, "random needs parameters"
        return cls(params, num_layers=num_layers)

    def begin(self, facts: RowFacts, *, force: bool = False) -> StatelessRow:
        """Takes up a row; it keeps nothing of it."""
        del facts
        return StatelessRow(
            roles=self._roles, budget=self._params.page_budget, choose=self._pages, force=force
        )

    def _pages(self, reading: Reading) -> torch.Tensor:
        """Forced pages and drawn ones, [min(P, K)]; drawn on the CPU, so equal on every device."""
        budget, recency = self._params.page_budget, self._params.recency_pages
        num_pages = reading.num_pages
        if num_pages <= budget:
            return torch.arange(num_pages, device=reading.q_HD.device)
        label = f"{self._params.seed}/{reading.generated}/{reading.layer}".encode()
        digest = blake2b(label, digest_size=_SEED_BYTES).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
        # Pages 1..P-L-1 are free; all of them are shuffled and the first few win.
        shuffled = torch.randperm(num_pages - recency - 1, generator=generator) + 1
        pages_U = torch.empty(budget, dtype=torch.int64)
        pages_U[0] = 0
        pages_U[1 : budget - recency] = shuffled[: budget - recency - 1].sort().values
        pages_U[budget - recency :] = torch.arange(num_pages - recency, num_pages)
        return pages_U.to(reading.q_HD.device)
