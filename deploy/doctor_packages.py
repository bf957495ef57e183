"""Doctor: Python, the gRPC family, protobuf, and why each optional package is absent."""

import importlib
import importlib.util
import re
import sys
from pathlib import Path

import protos
from deploy.finding import Finding, Status
from deploy.version import installed_version

_MIN_PYTHON = (3, 11)
_GRPC_FAMILY = (
    "grpcio",
    "grpcio-health-checking",
    "grpcio-reflection",
    "grpcio-status",
)
_GENCODE = re.compile(r"^# Protobuf Python Version: ([\d.]+)", re.MULTILINE)

# distribution, module to import, what it is taken for
_OPTIONAL = (
    ("triton", "triton", "CUDA kernels of our own"),
    ("nvidia-ml-py", "pynvml", "GPU topology"),
    ("flash-attn-4", "flash_attn.cute", "exact prefill attention on a GPU"),
    ("flash-attn", "flash_attn.flash_attn_interface", "the same, where it was built"),
    ("flashinfer-python", "flashinfer", "prefill attention; dense decode on request"),
    ("opentelemetry-sdk", "opentelemetry", "traces"),
)


def package_checks() -> list[Finding]:
    """All findings of this file."""
    return [
        _python(),
        _worker_packages(),
        _grpc_family(),
        _protobuf(),
        *(_optional(*row) for row in _OPTIONAL),
    ]


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info >= _MIN_PYTHON:
        return Finding("python", Status.OK, version)
    return Finding("python", Status.FAIL, version, "use Python 3.11 or newer")


def _worker_packages() -> Finding:
    names = ("torch", "transformers", "safetensors", "gguf", "zlib-ng")
    absent = [name for name in names if installed_version(name) is None]
    if absent:
        return Finding(
            "worker packages",
            Status.NOTE,
            f"absent: {', '.join(absent)}; this machine can run a gateway only",
            "for prefill and decode: pip install -e '.[worker]' in the checkout",
        )
    return Finding(
        "worker packages", Status.OK, ", ".join(f"{n} {installed_version(n)}" for n in names)
    )


def _grpc_family() -> Finding:
    versions = {name: installed_version(name) for name in _GRPC_FAMILY}
    detail = ", ".join(f"{name} {version or 'absent'}" for name, version in versions.items())
    if None in versions.values():
        return Finding("gRPC family", Status.FAIL, detail, "run make setup")
    minors = {".".join(str(version).split(".")[:2]) for version in versions.values()}
    if len(minors) > 1:
        return Finding(
            "gRPC family",
            Status.FAIL,
            detail,
            "install one version: pip install -c constraints.txt",
        )
    return Finding("gRPC family", Status.OK, detail)


def _protobuf() -> Finding:
    runtime = installed_version("protobuf") or "0"
    stub = Path(protos.__path__[0]) / "tandem" / "v1" / "common_pb2.py"
    match = _GENCODE.search(stub.read_text(encoding="utf-8"))
    gencode = match.group(1) if match else "0"
    detail = f"runtime {runtime}, stubs made for {gencode}"
    if _numbers(runtime) < _numbers(gencode):
        return Finding(
            "protobuf", Status.FAIL, detail, f"pip install 'protobuf>={gencode}' or make protos"
        )
    return Finding("protobuf", Status.OK, detail)


def _optional(distribution: str, module: str, gives: str) -> Finding:
    version = installed_version(distribution)
    name = f"optional: {distribution}"
    if version is None and not _is_there(module):
        return Finding(
            name, Status.NOTE, f"not installed ({gives})", "nothing: this version does without it"
        )
    try:
        importlib.import_module(module)
    except Exception as error:  # noqa: BLE001  a broken optional package may raise anything
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return Finding(
            name, Status.NOTE, f"{version} cannot be imported: {reason}", "reinstall or remove it"
        )
    return Finding(name, Status.OK, f"{version} ({gives})")


def _is_there(module: str) -> bool:
    """Whether a module can be found; what holds it may be absent or broken itself."""
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
