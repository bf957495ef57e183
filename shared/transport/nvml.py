"""What NVIDIA's management library tells of the GPUs of this machine and the links between them."""

import importlib
from dataclasses import dataclass
from typing import Any

_PACKAGE = "nvidia-ml-py"
_MODULE = "pynvml"

# nvmlGpuP2PCapsIndex_t and nvmlGpuP2PStatus_t of nvml.h: the package's own name for the first one
# is a tuple by a stray comma, which its call does not take.
_READ, _WRITE, _NVLINK = 0, 1, 2
_P2P_OK = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLinks:
    """GPUs by UUID, whatever CUDA_VISIBLE_DEVICES says."""

    gpus: tuple[str, ...] = ()
    """All that the driver shows this process."""
    nvlink_peers: tuple[str, ...] = ()
    """Those that NVLink joins with the one that was asked about."""
    p2p_peers: tuple[str, ...] = ()
    """Those that can read and write the memory of the one that was asked about."""
    note: str = ""
    """Why nothing is known; empty where something is."""


def read_gpu_links(gpu: str) -> GpuLinks:
    """The GPUs of this machine, and what joins `gpu` with the others.

    Args:
        gpu: UUID of this process's GPU; empty without one.
    """
    try:
        nvml: Any = importlib.import_module(_MODULE)
    except (ImportError, OSError) as error:
        return GpuLinks(note=f"package {_PACKAGE} cannot be imported ({_line(error)})")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return GpuLinks(note=f"no NVIDIA driver answers here ({_line(error)})")
    try:
        return _links(nvml, gpu)
    except nvml.NVMLError as error:
        return GpuLinks(note=f"the NVIDIA driver does not tell of its GPUs ({_line(error)})")
    finally:
        nvml.nvmlShutdown()


def bare_uuid(uuid: str) -> str:
    """A GPU's UUID without the prefix that NVML writes and torch leaves out."""
    return uuid.removeprefix("GPU-")


def _links(nvml: Any, gpu: str) -> GpuLinks:  # noqa: ANN401  a module without types
    handles = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        handles[bare_uuid(_text(nvml.nvmlDeviceGetUUID(handle)))] = handle
    own = handles.get(gpu)
    others = {} if own is None else {u: h for u, h in handles.items() if u != gpu}

    def joined(handle: Any, capability: int) -> bool:  # noqa: ANN401  a handle of the library
        try:
            status = nvml.nvmlDeviceGetP2PStatus(own, handle, capability)
        except nvml.NVMLError:
            return False  # an old driver, or one that does not know this pair
        return bool(status == _P2P_OK)

    return GpuLinks(
        gpus=tuple(handles),
        nvlink_peers=tuple(u for u, h in others.items() if joined(h, _NVLINK)),
        p2p_peers=tuple(u for u, h in others.items() if joined(h, _READ) and joined(h, _WRITE)),
        note="" if handles else "the NVIDIA driver shows no GPU",
    )


def _text(value: str | bytes) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


def _line(error: object) -> str:
    return str(error).partition("\n")[0][:80]
