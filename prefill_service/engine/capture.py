"""Keeps in memory what a prompt leaves behind: an observer for inspection, benchmarks and tests.

Shapes: N slots, R rows of positions, G KV heads, D head size.
"""

import torch
from torch import Tensor

from prefill_service.engine.plan import PromptPlan


class CapturedKv:
    """A prompt's KV by layer, and the positions of its slots by layout."""

    def __init__(self, plan: PromptPlan) -> None:
        self._plan = plan
        self._blocks: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self.positions_RN: dict[int, Tensor] = {}
        """Positions by layout, int32; identities have none."""

    def settled(self, plan: PromptPlan) -> None:
        """Takes the final plan."""
        self._plan = plan

    def kv_final(
        self, *, layer: int, first_slot: int, keys_NGD: Tensor, values_NGD: Tensor
    ) -> None:
        """Keeps a block."""
        blocks = self._blocks.setdefault(layer, [])
        assert first_slot == sum(k.shape[0] for k, _ in blocks), "blocks come in order"
        blocks.append((keys_NGD, values_NGD))

    def positions_final(self, *, layout: int, positions_RN: Tensor) -> None:
        """Keeps a layout's positions."""
        self.positions_RN[layout] = positions_RN

    def progress(self, *, done_tokens: int) -> None:
        """Nothing to keep."""

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer, [N, G, D] each."""
        blocks = self._blocks[index]
        return torch.cat([k for k, _ in blocks]), torch.cat([v for _, v in blocks])

    def layer_positions(self, index: int) -> Tensor:
        """Positions of a layer's slots, int64 [R, N]; the identity is one row."""
        positions_RN = self.positions_RN.get(self._plan.slab.layer_layouts[index])
        if positions_RN is None:
            return torch.arange(self._plan.prompt_tokens)[None]
        return positions_RN.to(torch.int64)
