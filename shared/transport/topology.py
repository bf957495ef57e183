"""What this process knows of its place: the machine, its pid namespace, and the GPUs."""

from collections.abc import Callable
from pathlib import Path

import torch

from shared.transport.nvml import GpuLinks, bare_uuid, read_gpu_links
from shared.types.topology import Topology

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")


def read_topology(
    device: str,
    *,
    boot_id: Path = _BOOT_ID,
    pid_namespace: Path = _PID_NAMESPACE,
    links: Callable[[str], GpuLinks] = read_gpu_links,
) -> Topology:
    """The place of a worker that computes on `device`.

    Args:
        device: as torch names it, for example cuda:0.
        boot_id: file with the machine's boot id; unreadable where the system has none.
        pid_namespace: file whose inode is that of this process's pid namespace.
        links: tells of the machine's GPUs, given the UUID of this process's.
    """
    gpu = _gpu(torch.device(device))
    found = links(gpu)
    return Topology(
        host=_read(boot_id),
        pid_namespace=_inode(pid_namespace),
        gpu=gpu,
        nvlink_peers=found.nvlink_peers,
        p2p_peers=found.p2p_peers,
        gpus=found.gpus,
        gpu_note=found.note,
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _inode(path: Path) -> str:
    try:
        return str(path.stat().st_ino)
    except OSError:
        return ""


def _gpu(device: torch.device) -> str:
    if device.type != "cuda":
        return ""
    return bare_uuid(str(torch.cuda.get_device_properties(device).uuid))
