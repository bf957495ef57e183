"""Keeps the engine a few layers ahead of a CUDA device, not a whole prompt.

Calls only enqueue work there. Without a limit a prompt would be enqueued in a few milliseconds and
could not be stopped any more; with one, it stops within these layers and its progress is true.
"""

from collections import deque

import torch

LAYERS_AHEAD = 4
"""Layers that may be enqueued and not computed: enough that the device never waits for the host."""


class Pace:
    """Of one prompt.

    Args:
        device: where layers are computed; on a CPU they are when a call returns.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        self._enqueued: deque[torch.cuda.Event] = deque()

    def layer_enqueued(self) -> None:
        """Returns as soon as no more layers than allowed are ahead."""
        if not self._on_cuda:
            return
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record()
        self._enqueued.append(event)
        if len(self._enqueued) > LAYERS_AHEAD:
            self._enqueued.popleft().synchronize()
