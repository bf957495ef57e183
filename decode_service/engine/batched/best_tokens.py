"""Best tokens on their way from the device to the host, behind which further steps may queue.

Shapes: B seats.
"""

import torch
from torch import Tensor

from shared.model.staging import Fetched, fetch

_IN_FLIGHT = 4
"""Steps whose tokens may be under way; one more than ever are."""


class TokenFetcher:
    """Copies tokens into pinned memory in the stream of the step.

    Args:
        max_rows: seats of any step.
    """

    def __init__(self, *, max_rows: int) -> None:
        self._max_rows = max_rows
        self._places: list[Tensor] = []
        self._turn = 0

    def fetch(self, best_2B: Tensor) -> Fetched:
        """Enqueues the copy: highest logits and tokens, float64 [2, B].

        What it gives holds until three more were enqueued.
        """
        if best_2B.device.type != "cuda":
            return fetch(best_2B.clone())
        if not self._places:
            self._places = [
                torch.empty(2 * self._max_rows, dtype=torch.float64, pin_memory=True)
                for _ in range(_IN_FLIGHT)
            ]
        place = self._places[self._turn][: best_2B.numel()].view(best_2B.shape)
        self._turn = (self._turn + 1) % _IN_FLIGHT
        return fetch(best_2B, place=place)
