"""Finds NVIDIA's NIXL library, which is optional, or says why it cannot be used."""

import importlib
import importlib.metadata
import importlib.util
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from shared.errors import ConfigError

_PACKAGES = (("nixl_cu13", "nixl-cu13"), ("nixl_cu12", "nixl-cu12"))
"""Modules and the distributions that hold them, best first; both run without a GPU, too."""

BACKEND = "UCX"
"""The only backend that is used: shared memory, TCP, RDMA and CUDA."""

NOT_INSTALLED = "not_installed"
"""Code of the refusal where there is no such package."""

BROKEN = "broken_library"
"""Code of the refusal where the package cannot be imported or started."""


@dataclass(frozen=True, slots=True)
class NixlLibrary:
    """The library, imported."""

    module: Any
    """Its Python interface."""
    version: str
    """Of its distribution."""
    failures: tuple[type[Exception], ...]
    """What its calls raise."""


def load_nixl() -> NixlLibrary:
    """Imports the library.

    Raises:
        ConfigError: it is not installed (code not_installed) or cannot be imported
            (broken_library).
    """
    for module_name, distribution in _PACKAGES:
        if importlib.util.find_spec(module_name) is not None:
            return _imported(module_name, distribution)
    raise ConfigError(
        f"package {_PACKAGES[0][1]} is not installed; install the extra nixl", code=NOT_INSTALLED
    )


def broken(why: object) -> ConfigError:
    """The refusal of a library that is there and does not work."""
    text = str(why).partition("\n")[0]
    return ConfigError(
        f"the NIXL library does not start here ({text}); reinstall it or leave it out", code=BROKEN
    )


def _imported(module_name: str, distribution: str) -> NixlLibrary:
    try:
        with _own_logging():
            module = importlib.import_module(module_name)
            bindings = importlib.import_module(f"{module_name}._bindings")
        version = importlib.metadata.version(distribution)
    except (ImportError, OSError, importlib.metadata.PackageNotFoundError) as error:
        raise broken(f"{type(error).__name__}: {error}") from error
    return NixlLibrary(module=module, version=version, failures=_failures(bindings))


def _failures(bindings: ModuleType) -> tuple[type[Exception], ...]:
    found = [v for v in vars(bindings).values() if isinstance(v, type) and issubclass(v, Exception)]
    return (*found, RuntimeError)


@contextmanager
def _own_logging() -> Iterator[None]:
    """Keeps the library's lines off standard output, which belongs to the launcher's protocol."""
    raise_exceptions = logging.raiseExceptions
    try:
        yield
    finally:
        logging.raiseExceptions = raise_exceptions
        logger = logging.getLogger("nixl")
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.WARNING)
