"""Memory of the device that computes, as one tensor of bytes.

A GPU's is torch's own allocation, which CUDA IPC can share as long as the allocator neither builds
it of mapped pieces (`expandable_segments`) nor takes it from the driver's pool (`cudaMallocAsync`).
On a CPU it is host memory that is treated the same, so that all but the kind of memory can be tried
without a GPU.
"""

import os

import numpy as np
import torch
from torch import Tensor

from shared.errors import ConfigError
from shared.kv.memory import HOST_SEGMENT
from shared.types.memory_kind import MemoryKind

DEVICE_SEGMENT = "VRAM"
"""Name that transport libraries have for memory of a GPU."""

_ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")

_UNSHAREABLE = {
    "expandable_segments:true": "expandable segments",
    "backend:cudamallocasync": "cudaMallocAsync",
}
"""Allocators whose memory has no handle of CUDA IPC, by their settings in lower case."""


class TensorMemory:
    """A buffer on a device.

    Args:
        nbytes: its size.
        device: where it is.

    Raises:
        ConfigError: the device has too little memory left, or gives none that can be shared.
    """

    kind = MemoryKind.DEVICE

    def __init__(self, nbytes: int, *, device: torch.device | str) -> None:
        self.device = torch.device(device)
        reason = unshareable(self.device)
        if reason:
            raise ConfigError(reason, param="kv_memory")
        try:
            self.bytes = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"{self.device} has no {nbytes} bytes left for KV on its way: lower slab_bytes on "
                "a decode worker or buffer_bytes on a prefill worker, or set kv_memory to host",
                param="kv_memory",
            ) from error
        on_gpu = self.device.type == "cuda"
        self.segment = DEVICE_SEGMENT if on_gpu else HOST_SEGMENT
        self.nbytes = nbytes
        self.address = self.bytes.data_ptr()
        self.device_index = max(self.bytes.get_device(), 0)
        self._stream = torch.cuda.Stream(self.device) if on_gpu else None  # type: ignore[no-untyped-call]

    def store(self, start: int, data: memoryview) -> None:
        """See `KvMemory.store`; through pinned memory, back when the bytes are there."""
        copy = torch.empty(data.nbytes, dtype=torch.uint8, pin_memory=self._stream is not None)
        copy.numpy()[:] = np.frombuffer(data, dtype=np.uint8)
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            self.bytes[start : start + data.nbytes].copy_(copy, non_blocking=True)
        if self._stream is not None:
            self._stream.synchronize()

    def fetch(self, start: int, length: int) -> memoryview:
        """See `KvMemory.fetch`: through pinned memory, a copy in any case."""
        pinned = self._stream is not None
        copy = torch.empty(length, dtype=torch.uint8, pin_memory=pinned)
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            copy.copy_(self.bytes[start : start + length], non_blocking=pinned)
        if self._stream is not None:
            self._stream.synchronize()
        return copy.numpy().data

    def enter_thread(self) -> None:
        """See `KvMemory.enter_thread`: its GPU becomes the thread's."""
        if self._stream is not None:
            torch.cuda.set_device(self.device)

    def beside(self, nbytes: int) -> "TensorMemory":
        """See `KvMemory.beside`."""
        return TensorMemory(nbytes, device=self.device)

    def tensor(self, start: int, length: int) -> Tensor:
        """A view of bytes, uint8 [length]."""
        return self.bytes[start : start + length]


def unshareable(device: torch.device) -> str:
    """Why other processes could not reach memory of a device; empty when they can."""
    if device.type != "cuda":
        return ""
    for name in _ALLOCATOR_SETTINGS:
        settings = os.environ.get(name, "").replace(" ", "").lower()
        for setting, allocator in _UNSHAREABLE.items():
            if setting in settings:
                return (
                    f"the variable {name} asks torch for {allocator}, whose memory CUDA IPC cannot "
                    "share with another process: leave that out, or set kv_memory to host"
                )
    return ""
