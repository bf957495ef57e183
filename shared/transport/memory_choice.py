"""Which kind of memory a worker hands KV over in, and why."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from shared.errors import ConfigError
from shared.kv.memory import Allocator, HostMemory
from shared.kv_memory.tensor_memory import TensorMemory, unshareable
from shared.transport.nixl_library import load_nixl
from shared.transport.nixl_wire import NAME as NIXL
from shared.types.memory_kind import AUTO, MemoryKind


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryChoice:
    """What came of the setting."""

    kind: MemoryKind
    """The kind."""
    reason: str
    """Why, as a sentence."""
    device: str
    """Device that computes."""

    @property
    def allocator(self) -> Allocator:
        """Makes memory of the kind."""
        if self.kind is MemoryKind.HOST:
            return HostMemory
        return partial(TensorMemory, device=self.device)

    @property
    def facts(self) -> dict[str, str]:
        """For health."""
        return {"kind": self.kind.value, "reason": self.reason}


def choose_memory(setting: str, *, device: str, transports: Sequence[str]) -> MemoryChoice:
    """Decides.

    Args:
        setting: kv_memory: auto, device or host.
        device: that computes, as torch names it.
        transports: that the worker may use.

    Raises:
        ConfigError: device memory was asked for and cannot be handed over.
    """

    def on_host(reason: str) -> MemoryChoice:
        return MemoryChoice(kind=MemoryKind.HOST, reason=reason, device=device)

    if setting == MemoryKind.HOST.value:
        return on_host("kv_memory is host")
    if setting == AUTO and torch.device(device).type != "cuda":
        return on_host(f"device {device} computes in host memory")
    against = _against(device, transports)
    if against and setting == AUTO:
        return on_host(against)
    if against and torch.device(device).type == "cpu":
        raise ConfigError(
            f"kv_memory device cannot be had: device {device} computes in host memory, and has "
            f"none of its own; set kv_memory to auto or host. To try on a CPU what a GPU would do: "
            f"{against}",
            param="kv_memory",
        )
    if against:
        raise ConfigError(
            f"kv_memory device cannot be had: {against}; mend that, or set kv_memory to auto",
            param="kv_memory",
        )
    asked = "kv_memory is device" if setting != AUTO else f"{device} and {NIXL}"
    return MemoryChoice(kind=MemoryKind.DEVICE, reason=asked, device=device)


def _against(device: str, transports: Sequence[str]) -> str:
    """What speaks against device memory; empty when nothing does."""
    if NIXL not in transports:
        return f"transports leave out {NIXL}, the only one that writes from device to device"
    try:
        load_nixl()
    except ConfigError as error:
        return f"{NIXL} does not work here ({error.message})"
    return unshareable(torch.device(device))
