"""Doctor: devices, memory, shared memory, file descriptors, and ports of this machine."""

import os
import resource
import shutil
import socket
import sys
from pathlib import Path

import psutil

from deploy.config import UpConfig
from deploy.finding import Finding, Status
from deploy.launch import ROLE_MODULES, ROLE_PACKAGES
from deploy.version import installed_version

_GIB = 1024**3
_SHM = "/dev/shm"  # noqa: S108  the size of the mount is what is checked
_MIN_SHM_BYTES = _GIB
_MIN_FILES = 4096
_MIN_MEMORY_BYTES = 4 * _GIB

_OURS = frozenset({*ROLE_PACKAGES.values(), *ROLE_MODULES.values()})
_OTHER_PORT = "stop that process or give another port (0 picks a free one)"


def machine_checks() -> list[Finding]:
    """All findings of this file but the ports."""
    return [_processor(), _memory(), _gpu(), _shared_memory(), _file_descriptors(), _loopback()]


def port_checks() -> list[Finding]:
    """Whether the default ports are free; the owner is named when that can be seen."""
    config = UpConfig()
    ports = {
        "REST": config.rest_port,
        "gRPC": config.grpc_port,
        "gateway admin": config.gateway_admin_port,
        "prefill": config.prefill_port,
        "prefill admin": config.prefill_admin_port,
        "decode": config.decode_port,
        "decode admin": config.decode_admin_port,
    }
    return [_port(name, port) for name, port in ports.items()]


def _processor() -> Finding:
    return Finding("processor", Status.OK, f"{os.cpu_count()} cores")


def _memory() -> Finding:
    free = psutil.virtual_memory().available
    detail = f"{free / _GIB:.1f} GiB available"
    if free < _MIN_MEMORY_BYTES:
        return Finding(
            "memory",
            Status.NOTE,
            detail,
            "the embedded pair wants 4 GiB; lower --kv-bytes of decode",
        )
    return Finding("memory", Status.OK, detail)


def _gpu() -> Finding:
    has_driver = Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi") is not None
    if installed_version("torch") is None:
        return Finding("GPU", Status.NOTE, "torch is absent, so no device can be used here")
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return Finding("GPU", Status.OK, ", ".join(names))
    if not has_driver:
        return Finding("GPU", Status.NOTE, "none on this machine; everything runs on the CPU")
    if torch.version.cuda is None:
        return Finding(
            "GPU", Status.FAIL, "a driver is here, but torch is a CPU build", "install a CUDA torch"
        )
    return Finding(
        "GPU",
        Status.FAIL,
        "a driver is here, but torch sees no device",
        "in a container, give it the GPUs (capabilities: [gpu]); check CUDA_VISIBLE_DEVICES",
    )


def _shared_memory() -> Finding:
    folder = Path(_SHM)
    if not folder.is_dir():
        return Finding(_SHM, Status.NOTE, "absent", "only Linux has it")
    total = shutil.disk_usage(folder).total
    detail = f"{total / _GIB:.2f} GiB"
    if total < _MIN_SHM_BYTES:
        return Finding(_SHM, Status.NOTE, detail, "in a container, raise shm_size to 8g")
    return Finding(_SHM, Status.OK, detail)


def _file_descriptors() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    detail = f"{soft} of at most {hard}"
    if soft < _MIN_FILES:
        return Finding(
            "file descriptors",
            Status.NOTE,
            detail,
            f"ulimit -n {_MIN_FILES} before many clients come",
        )
    return Finding("file descriptors", Status.OK, detail)


def _loopback() -> Finding:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            socket.create_connection(("127.0.0.1", port), timeout=2.0).close()
    except OSError as error:
        return Finding("loopback", Status.FAIL, str(error), "allow connections to 127.0.0.1")
    return Finding("loopback", Status.OK, "reachable")


def _port(name: str, port: int) -> Finding:
    label = f"port {port} ({name})"
    try:
        with socket.create_server(("127.0.0.1", port), reuse_port=False):
            return Finding(label, Status.OK, "free")
    except OSError:
        pid, name = _owner(port) or (0, "")
    detail = f"in use by process {pid} ({name})" if pid else "in use"
    if name in _OURS:
        return Finding(label, Status.NOTE, detail, "nothing: Tandem runs here")
    return Finding(label, Status.FAIL, detail, _OTHER_PORT)


def _owner(port: int) -> tuple[int, str] | None:
    """Process id and name, a role's package for one of ours; None where it cannot be seen."""
    if sys.platform != "linux":
        return None
    try:
        for connection in psutil.net_connections(kind="tcp"):
            if connection.laddr and connection.laddr.port == port and connection.pid:
                process = psutil.Process(connection.pid)
                ours = (word for word in process.cmdline() if word in _OURS)
                return connection.pid, next(ours, process.name())
    except psutil.Error:
        return None
    return None
