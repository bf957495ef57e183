"""Which kind of memory a worker hands KV over in, and why."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import structlog
import torch

from shared.errors import ConfigError
from shared.kv.memory import Allocator, HostMemory
from shared.kv_memory.tensor_memory import TensorMemory, unshareable
from shared.telemetry.metrics import HealthMetrics
from shared.transport.nixl_agent import probe_agent
from shared.transport.nixl_library import load_nixl
from shared.transport.nixl_wire import NAME as NIXL
from shared.types.memory_kind import AUTO, MemoryKind

PROBE_BYTES = 64 * 1024
"""Device memory that is registered on trial before a worker relies on it."""

UNSHAREABLE = "unshareable"
"""Code of a fallback: torch's allocator gives memory that no other process can reach."""

NOT_REGISTERED = "not_registered"
"""Code of a fallback: the library works, but not on memory of this device."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryChoice:
    """What came of the setting."""

    kind: MemoryKind
    """The kind."""
    reason: str
    """Why, as a sentence."""
    device: str
    """Device that computes."""
    fallback: str = ""
    """What kept device memory from being taken, as one of few words; empty: nothing did."""

    @property
    def allocator(self) -> Allocator:
        """Makes memory of the kind."""
        if self.kind is MemoryKind.HOST:
            return HostMemory
        return partial(TensorMemory, device=self.device)

    @property
    def facts(self) -> dict[str, str]:
        """For health."""
        facts = {"kind": self.kind.value, "reason": self.reason}
        return facts | ({"fallback": self.fallback} if self.fallback else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Obstacle:
    code: str
    reason: str


def note_memory(choice: MemoryChoice, metrics: HealthMetrics) -> None:
    """Shows in metrics and log that KV of a device goes through host memory, where it does."""
    if choice.fallback:
        metrics.kv_memory_fallback.labels(choice.fallback).set(1)
        _log.warning("KV is handed over in host memory", device=choice.device, reason=choice.reason)


def choose_memory(setting: str, *, device: str, transports: Sequence[str]) -> MemoryChoice:
    """Decides; device memory is taken only once a little of it was registered on trial.

    Args:
        setting: kv_memory: auto, device or host.
        device: that computes, as torch names it.
        transports: that the worker may use.

    Raises:
        ConfigError: device memory was asked for and cannot be handed over.
    """

    def on_host(reason: str, *, fallback: str = "") -> MemoryChoice:
        return MemoryChoice(kind=MemoryKind.HOST, reason=reason, device=device, fallback=fallback)

    if setting == MemoryKind.HOST.value:
        return on_host("kv_memory is host")
    if setting == AUTO and torch.device(device).type != "cuda":
        return on_host(f"device {device} computes in host memory")
    against = _against(device, transports)
    if against and setting == AUTO:
        return on_host(against.reason, fallback=against.code)
    if against and torch.device(device).type == "cpu":
        raise ConfigError(
            f"kv_memory device cannot be had: device {device} computes in host memory, and has "
            f"none of its own; set kv_memory to auto or host. To try on a CPU what a GPU would do: "
            f"{against.reason}",
            param="kv_memory",
        )
    if against:
        raise ConfigError(
            f"kv_memory device cannot be had: {against.reason}; mend that, or set kv_memory to "
            "auto",
            param="kv_memory",
        )
    asked = "kv_memory is device" if setting != AUTO else f"{device} and {NIXL}"
    return MemoryChoice(kind=MemoryKind.DEVICE, reason=asked, device=device)


def _against(device: str, transports: Sequence[str]) -> _Obstacle | None:
    """What speaks against device memory; a choice of transports is the operator's, no fallback."""
    if NIXL not in transports:
        return _Obstacle(
            code="",
            reason=f"transports leave out {NIXL}, the only one that writes from device to device",
        )
    try:
        load_nixl()
    except ConfigError as error:
        return _Obstacle(
            code=error.error_code, reason=f"{NIXL} does not work here ({error.message})"
        )
    unreachable = unshareable(torch.device(device))
    if unreachable:
        return _Obstacle(code=UNSHAREABLE, reason=unreachable)
    try:
        probe_agent(TensorMemory(PROBE_BYTES, device=device))
    except ConfigError as error:
        return _Obstacle(
            code=NOT_REGISTERED,
            reason=f"{NIXL} cannot register memory of {device} ({error.message})",
        )
    return None
