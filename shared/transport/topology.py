"""What this process knows of its place: the machine, and the GPU on it."""

from pathlib import Path

import torch

from shared.types.topology import Topology

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def read_topology(device: str, *, boot_id: Path = _BOOT_ID) -> Topology:
    """The place of a worker that computes on `device`.

    NVLink peers are not among it: no transport of this version copies over NVLink.

    Args:
        device: as torch names it, for example cuda:0.
        boot_id: file with the machine's boot id; unreadable where the system has none.
    """
    return Topology(host=_read(boot_id), gpu=_gpu(torch.device(device)))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _gpu(device: torch.device) -> str:
    if device.type != "cuda":
        return ""
    return str(torch.cuda.get_device_properties(device).uuid)
