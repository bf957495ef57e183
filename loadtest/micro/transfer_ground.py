"""Where the transfer benchmark sends from: bytes of the host, or of a GPU beside another one."""

import hashlib
import time
from dataclasses import asdict
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from shared.errors import ConfigError
from shared.kv.memory import HostMemory, KvBytes, KvMemory, MemoryPart
from shared.kv_memory.tensor_memory import TensorMemory
from shared.transport.topology import read_topology
from shared.types.memory_kind import MemoryKind


class Ground(Protocol):
    """The sending side's memory."""

    @property
    def memory(self) -> KvMemory:
        """What transports are to register, as a prefill worker's buffer is."""

    @property
    def on_host(self) -> bool:
        """Whether it is the host's, which every transport reads."""

    @property
    def receiver_device(self) -> str:
        """Device of the receiving side's slab; empty for host memory."""

    @property
    def facts(self) -> dict[str, Any]:
        """Both places, JSON-ready."""

    def payload(self, nbytes: int) -> KvBytes:
        """The first bytes."""

    def digest(self, nbytes: int) -> str:
        """SHA-256 of the first bytes, hex."""

    def copy(self, nbytes: int) -> float:
        """Seconds of a bare copy of the first bytes to where a receiver's would be."""


def check_memory_here(kind: str) -> None:
    """Refuses memory that this machine does not have, before anything starts.

    Raises:
        ConfigError: it is no kind of memory, or a device's where there is no GPU.
    """
    _known_memory(kind)
    if kind == MemoryKind.DEVICE.value and not torch.cuda.is_available():
        raise ConfigError(
            "--memory device measures from one GPU's memory to another's, and PyTorch finds no GPU "
            "here: leave it out to measure host memory, or run `tandem doctor` on a machine that "
            "has one",
            param="memory",
            code="no_device",
        )


def open_ground(kind: str, *, nbytes: int) -> Ground:
    """Allocates and fills the sending side.

    Args:
        kind: host or device.
        nbytes: the largest transfer.

    Raises:
        ConfigError: it is neither, or a device has too little memory.
    """
    _known_memory(kind)
    return HostGround(nbytes) if kind == MemoryKind.HOST.value else DeviceGround(nbytes)


def _known_memory(kind: str) -> None:
    if kind not in {each.value for each in MemoryKind}:
        raise ConfigError(f"--memory cannot be {kind!r}: choose host or device", param="memory")


class HostGround:
    """Host memory; the bare copy is one within this process.

    Args:
        nbytes: the largest transfer.
    """

    receiver_device = ""
    on_host = True

    def __init__(self, nbytes: int) -> None:
        self.memory = HostMemory(nbytes)
        self._source: npt.NDArray[np.uint8] = np.frombuffer(self.memory, dtype=np.uint8)
        self._source[:] = np.random.default_rng(0).integers(0, 256, nbytes, dtype=np.uint8)
        self._target = np.zeros_like(self._source)
        self.facts: dict[str, Any] = {"kind": MemoryKind.HOST.value}

    def payload(self, nbytes: int) -> KvBytes:
        """See `Ground.payload`."""
        return MemoryPart(self.memory, 0, nbytes)

    def digest(self, nbytes: int) -> str:
        """See `Ground.digest`."""
        return hashlib.sha256(self._source[:nbytes].data).hexdigest()

    def copy(self, nbytes: int) -> float:
        """See `Ground.copy`."""
        started = time.perf_counter()
        np.copyto(self._target[:nbytes], self._source[:nbytes])
        return time.perf_counter() - started


class DeviceGround:
    """Memory of the first GPU; the bare copy is this process's own, to the second GPU.

    With one GPU both sides are on it. Without one both are on the CPU, which tries bytes and code
    in tests and says nothing of a link: commands ask `check_memory_here` first.

    Args:
        nbytes: the largest transfer.
    """

    on_host = False

    def __init__(self, nbytes: int) -> None:
        count = torch.cuda.device_count()
        sender = "cuda:0" if count else "cpu"
        self.receiver_device = f"cuda:{min(1, count - 1)}" if count else "cpu"
        self.memory = TensorMemory(nbytes, device=sender)
        self._target = torch.zeros(nbytes, dtype=torch.uint8, device=self.receiver_device)
        generator = torch.Generator(sender).manual_seed(0)
        self.memory.bytes.random_(0, 256, generator=generator)
        self._wait()
        self.facts = {
            "kind": MemoryKind.DEVICE.value,
            "sender": sender,
            "receiver": self.receiver_device,
            "topology": {
                "sender": asdict(read_topology(sender)),
                "receiver": asdict(read_topology(self.receiver_device)),
            },
        }

    def payload(self, nbytes: int) -> KvBytes:
        """See `Ground.payload`."""
        return MemoryPart(self.memory, 0, nbytes)

    def digest(self, nbytes: int) -> str:
        """See `Ground.digest`."""
        return hashlib.sha256(self.memory.fetch(0, nbytes)).hexdigest()

    def copy(self, nbytes: int) -> float:
        """See `Ground.copy`."""
        self._wait()
        started = time.perf_counter()
        self._target[:nbytes].copy_(self.memory.tensor(0, nbytes), non_blocking=True)
        self._wait()
        return time.perf_counter() - started

    def _wait(self) -> None:
        for device in {self.memory.device, self._target.device}:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
