"""Where a worker's memory is, so that others can tell how near they are to it."""

from collections.abc import Iterable
from dataclasses import dataclass

from shared.types.memory_kind import MemoryKind

MAX_PLACE_GPUS = 64
"""GPUs that a list of a place names at most; the rest is left out."""

MAX_PLACE_TEXT = 128
"""Characters of one value of a place; a longer one is none of ours and counts as not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """As far as the worker knows; what it does not know is empty."""

    host: str = ""
    """Boot id of its machine: workers with the same one share that machine's memory."""
    pid_namespace: str = ""
    """Inode of its pid namespace: processes of one can open each other's memory."""
    gpu: str = ""
    """UUID of its GPU."""
    nvlink_peers: tuple[str, ...] = ()
    """UUIDs of the GPUs that NVLink joins with its own."""
    p2p_peers: tuple[str, ...] = ()
    """UUIDs of the GPUs that read and write its own one's memory directly, by NVLink or PCIe."""
    gpus: tuple[str, ...] = ()
    """UUIDs of all GPUs that the machine's driver shows it."""
    gpu_note: str = ""
    """Why nothing is known of GPUs; empty where something is."""
    kv_memory: str = ""
    """Kind of memory that its KV is handed over in, host or device; empty counts as host."""


def same_machine(one: Topology, other: Topology) -> bool:
    """Whether both say that they run on one machine."""
    return bool(one.host) and one.host == other.host


def processes_apart(one: Topology, other: Topology) -> bool:
    """Whether both run on one machine and cannot open each other's memory there.

    CUDA IPC and UCX's shared memory need one pid namespace; who does not tell its own is let pass.
    """
    told = bool(one.pid_namespace) and bool(other.pid_namespace)
    return same_machine(one, other) and told and one.pid_namespace != other.pid_namespace


def memory_apart(one: Topology, other: Topology) -> bool:
    """Whether one hands KV over in a device's memory and the other in the host's."""
    host = MemoryKind.HOST.value
    return (one.kv_memory or host) != (other.kv_memory or host)


def joined_by_nvlink(one: Topology, other: Topology) -> bool:
    """Whether KV can go from GPU to GPU over NVLink, or need not leave its GPU."""
    if not one.gpu or not other.gpu or not same_machine(one, other):
        return False
    if processes_apart(one, other):
        return False
    return one.gpu == other.gpu or other.gpu in one.nvlink_peers


def place_text(value: object) -> str:
    """A value of a place as a peer told it; empty for what no worker would say."""
    if not isinstance(value, str) or len(value) > MAX_PLACE_TEXT or not value.isprintable():
        return ""
    return value


def place_names(values: Iterable[object]) -> tuple[str, ...]:
    """A list of a place as a peer told it, without what no worker would say."""
    found: list[str] = []
    for value in values:
        name = place_text(value)
        if name and name not in found:
            found.append(name)
        if len(found) == MAX_PLACE_GPUS:
            break
    return tuple(found)
