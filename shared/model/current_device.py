"""Makes a model's device the current one, which events, streams and Triton's launches go by."""

from contextlib import AbstractContextManager, nullcontext

import torch


def computing_on(device: torch.device) -> AbstractContextManager[object]:
    """Within, `device` is current in this thread; a CPU always is."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
