"""Best tokens on their way from the device to the host, behind which further steps may queue.

Shapes: B seats.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_IN_FLIGHT = 4
"""Steps whose tokens may be under way; one more than ever are."""


@dataclass(frozen=True, slots=True, eq=False)
class BestTokens:
    """The best tokens of one step."""

    _best_2B: Tensor
    _copied: torch.cuda.Event | None

    def wait(self) -> Tensor:
        """Waits for the step; highest logits and tokens, float64 [2, B], on the host."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._best_2B


class TokenFetcher:
    """Copies tokens into pinned memory in the stream of the step.

    Args:
        max_rows: seats of any step.
    """

    def __init__(self, *, max_rows: int) -> None:
        self._max_rows = max_rows
        self._places: list[Tensor] = []
        self._turn = 0

    def fetch(self, best_2B: Tensor) -> BestTokens:
        """Enqueues the copy; what it gives holds until three more were enqueued."""
        if best_2B.device.type != "cuda":
            return BestTokens(best_2B.clone(), None)
        if not self._places:
            self._places = [
                torch.empty(2 * self._max_rows, dtype=torch.float64, pin_memory=True)
                for _ in range(_IN_FLIGHT)
            ]
        place = self._places[self._turn][: best_2B.numel()].view(best_2B.shape)
        self._turn = (self._turn + 1) % _IN_FLIGHT
        place.copy_(best_2B, non_blocking=True)
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record()
        return BestTokens(place, copied)
