"""Small tensors on their way to a device and back, which an engine's thread does not wait for.

A copy from or to ordinary memory holds up the thread until the device has come to it; pinned memory
comes from PyTorch's cache of it, which keeps a piece until the copy is done.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shared.model.current_device import computing_on


def sent_to(host: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on `device`, behind what is enqueued there."""
    if device.type != "cuda":
        return host.to(device)
    with computing_on(device):  # memory is pinned by way of some device, which this must be
        return host.pin_memory().to(device, non_blocking=True)


@dataclass(frozen=True, slots=True, eq=False)
class Fetched:
    """A result whose copy to the host is enqueued."""

    host: Tensor
    """Where it goes; its numbers are there once `wait` returned."""
    _copied: torch.cuda.Event | None

    def wait(self) -> Tensor:
        """The result; waits for what was enqueued before it in that stream, and nothing else."""
        if self._copied is not None:
            self._copied.synchronize()
        return self.host


def fetch(result: Tensor, *, place: Tensor | None = None) -> Fetched:
    """Enqueues the copy of a result to the host, in the current stream.

    Args:
        result: on any device; on the host's it is taken as it is.
        place: pinned memory for it; None takes some.
    """
    if result.device.type != "cuda":
        return Fetched(result, None)
    host = place
    if host is None:
        host = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)
    host.copy_(result, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()
    return Fetched(host, copied)
