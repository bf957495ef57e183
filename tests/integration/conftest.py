"""A gateway before simulated workers, a decode service before a prefill peer, and all three real.

A module that needs other settings defines the fixture anew. Imports of torch wait for the fixtures
that need it.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.support.gateway_rig import Rig, running_rig
from tests.support.tiny_tokenizer import write_tokenizer_folder
from tests.support.tool_templates import TEMPLATES

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from decode_service.app import DecodeServer
    from shared.model.transformer import Transformer
    from tests.support.decode_server import ServerPair
    from tests.support.full_stack import Stack
    from tests.support.prefill_peer import PrefillPeer, Prepared


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer and a chat template; read it, never change it."""
    return write_tokenizer_folder(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def tools_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a chat template that knows tools, for modules whose `folder` it is."""
    return write_tokenizer_folder(
        tmp_path_factory.mktemp("tools") / "tokenizer", chat_template=TEMPLATES["hermes"]
    )


@pytest.fixture
async def rig(folder: Path) -> AsyncIterator[Rig]:
    """One gateway, one worker of each role."""
    async with running_rig(folder) as started:
        yield started


@pytest.fixture
async def client(rig: Rig) -> AsyncIterator["AsyncOpenAI"]:
    """The official client of `rig`; what is refused is not asked again."""
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


@pytest.fixture(scope="session")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the decode services of these tests select."""
    from tests.support.decode_server import write_profile

    return write_profile(tmp_path_factory.mktemp("profile"))


@pytest.fixture
async def server(tiny_model_dir: Path, profile: Path) -> AsyncIterator["DecodeServer"]:
    """A decode service that a commit without its pages does not hold up for long."""
    from tests.support.decode_server import decode_server

    async with decode_server(tiny_model_dir, profile, commit_wait_s=0.5) as running:
        yield running


@pytest.fixture
async def peer(server: "DecodeServer") -> AsyncIterator["PrefillPeer"]:
    """What hands prompts over to `server`."""
    from tests.support.prefill_peer import prefill_peer

    async with prefill_peer(server.core.identity, server.address) as made:
        yield made


@pytest.fixture
def pair(tiny_model_dir: Path, profile: Path) -> "ServerPair":
    """Starts a decode service with a test's own settings, and its peer."""
    from tests.support.decode_server import pair_starter

    return pair_starter(tiny_model_dir, profile)


@pytest.fixture(scope="session")
def prepared(tiny_model: "Transformer") -> "Prepared":
    """A prompt pruned to half."""
    from tests.support.prefill_peer import prepare

    return prepare(tiny_model, mode="shared", tokens=60, kept=30)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tiny_model_dir: Path, profile: Path) -> AsyncIterator["Stack"]:
    """All of them real; for modules whose tests share an event loop."""
    from tests.support.full_stack import running_stack

    async with running_stack(tiny_model_dir, profile) as started:
        yield started
