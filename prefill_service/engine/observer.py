"""Who hears what a prompt leaves behind while it is computed.

Shapes: N slots, R rows of positions, G KV heads, D head size.
"""

from typing import Protocol

from torch import Tensor

from prefill_service.engine.plan import PromptPlan


class KvObserver(Protocol):
    """Is told what a prompt leaves behind, in the thread that runs it, in this order.

    Tensors are contiguous, on the model's device, and never written again: they may be kept.
    """

    def settled(self, plan: PromptPlan) -> None:
        """The plan as it ends: once, before the first choice, where a mass sets its count."""

    def kv_final(
        self, *, layer: int, first_slot: int, keys_NGD: Tensor, values_NGD: Tensor
    ) -> None:
        """Slots `first_slot`.. of a layer are final; a layer's blocks come in order of slots."""

    def positions_final(self, *, layout: int, positions_RN: Tensor) -> None:
        """The positions of a layout (int32), once, before the first KV that uses it."""

    def progress(self, *, done_tokens: int) -> None:
        """The share of the work that is done, in prompt tokens; called after every layer."""
