"""The contract: other people's clients in front of a running gateway, and nobody else."""

import ipaddress
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from tests.support.tiny_tokenizer import write_tokenizer_folder
from tests.support.tool_templates import TEMPLATES, with_template

if TYPE_CHECKING:
    from tests.support.full_stack import Stack


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer and a chat template; read it, never change it."""
    return write_tokenizer_folder(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(autouse=True)
def _nobody_else(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A client that speaks to anything but this machine (prices, telemetry, traces) fails."""
    strangers: list[Any] = []
    connect, lookup = socket.socket.connect, socket.getaddrinfo

    def guarded_connect(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and not ipaddress.ip_address(address[0]).is_loopback:
            strangers.append(address)
            raise ConnectionRefusedError(f"{address} is not this machine")
        connect(self, address)

    def guarded_lookup(host: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name not in {None, "", "localhost", "127.0.0.1", "::1"}:
            strangers.append(name)
            raise socket.gaierror(socket.EAI_FAIL, f"{name} is not this machine")
        return lookup(host, *args, **kwargs)

    monkeypatch.setattr(socket.socket, "connect", guarded_connect)
    monkeypatch.setattr(socket, "getaddrinfo", guarded_lookup)
    yield
    assert strangers == []


@pytest.fixture(scope="session")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the workers of the pair select."""
    from tests.support.decode_server import write_profile

    return write_profile(tmp_path_factory.mktemp("profile"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(
    tiny_model_dir: Path, profile: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator["Stack"]:
    """Gateway, prefill and decode, all real; the tiny model's chat template prints tools."""
    from tests.support.full_stack import running_stack

    folder = with_template(
        tiny_model_dir, tmp_path_factory.mktemp("pair") / "tiny", template=TEMPLATES["hermes"]
    )
    async with running_stack(folder, profile) as started:
        yield started
