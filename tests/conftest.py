"""Fixtures that every test directory shares."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if not Path("/dev/nvidiactl").exists():
    # Read when Triton is first imported: without a GPU its interpreter runs the kernels.
    os.environ["TRITON_INTERPRET"] = "1"

from tests.support.redis_server import redis_url  # noqa: F401  a fixture
from tests.support.thread_guard import no_thread_left

if TYPE_CHECKING:
    from shared.model.transformer import Transformer


@pytest.fixture(scope="session")
def tiny_model() -> "Transformer":
    """The tiny random llama in memory; read it, never change it."""
    from tests.support.tiny_model import make_tiny_model

    return make_tiny_model()


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model as a standard folder named `tiny`."""
    from tests.support.tiny_model import TINY_NAME, write_tiny_folder

    return write_tiny_folder(tmp_path_factory.mktemp("models") / TINY_NAME)


@pytest.fixture(scope="module", autouse=True)
def _no_thread_left() -> Iterator[None]:
    """A module whose threads go on disturbs somebody else's tests, so that its last test fails."""
    with no_thread_left():
        yield


@pytest.fixture(autouse=True)
def _fixed_torch_seed() -> None:
    """Torch's global generator starts equal in every test, whatever order they run in."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """The embedded real model's folder, pulled into the user's cache the first time."""
    from shared.model.catalog import resolve

    return resolve("smollm2")
