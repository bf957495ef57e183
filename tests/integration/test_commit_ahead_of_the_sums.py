"""A whole pair between device memories: the commit is there while the last layers are computed."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from decode_service.engine.intake import Intake
from prefill_service.engine.device_slab import DeviceSlab
from shared.transport.nixl_sender import NixlSender
from shared.types.kv_manifest import KvManifest
from tests.support.decode_server import write_profile
from tests.support.full_stack import Stack, running_stack
from tests.support.transfer_parts import needs_nixl

pytestmark = needs_nixl

WAYS = {"require_transport": "nixl", "kv_memory": "device"}
BODY = {"prompt": "fox " * 70, "max_tokens": 6, "temperature": 0, "ignore_eos": True}


@pytest.fixture
async def stack(tiny_model_dir: Path, tmp_path: Path) -> AsyncIterator[Stack]:
    """Both workers are idle in the end, with nothing held."""
    profile = write_profile(tmp_path)
    async with running_stack(tiny_model_dir, profile, prefill=WAYS, decode=WAYS) as started:
        yield started


class Commits:
    """What decode workers hear; sums are held back until a test lets them go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heard: list[KvManifest] = []
        self.some = asyncio.Event()
        self.sums = asyncio.Event()
        commit, sums = Intake.commit, DeviceSlab.sums

        async def noted(intake: Intake, manifest: KvManifest, **named: Any) -> Any:
            self.heard.append(manifest)
            self.some.set()
            return await commit(intake, manifest, **named)

        async def held(slab: DeviceSlab) -> tuple[int, ...]:
            await self.sums.wait()
            return await sums(slab)

        monkeypatch.setattr(Intake, "commit", noted)
        monkeypatch.setattr(DeviceSlab, "sums", held)


@pytest.fixture
async def commits(monkeypatch: pytest.MonkeyPatch) -> Commits:
    return Commits(monkeypatch)


async def ask(stack: Stack, mode: str = "both") -> str:
    answer = await stack.http.post("/v1/completions", json=BODY | {"tandem": {"mode": mode}})
    answer.raise_for_status()
    return str(answer.json()["choices"][0]["text"])


@pytest.mark.parametrize("mode", ["full", "both"])
async def test_it_is_heard_before_there_are_sums_and_adopted_with_them(
    stack: Stack, commits: Commits, mode: str
) -> None:
    asking = asyncio.ensure_future(ask(stack, mode))
    await asyncio.wait_for(commits.some.wait(), 10)
    [manifest] = commits.heard
    assert manifest.sums_follow
    assert not any(segment.sum64 for segment in manifest.segments)
    assert stack.decode.core.worker.table.counters.adopted == 0
    commits.sums.set()
    assert await asking
    assert stack.decode.core.worker.table.counters.adopted == 1


async def test_a_worker_of_an_earlier_version_is_told_at_the_end_and_answers_the_same(
    stack: Stack, commits: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits.sums.set()
    ahead = await ask(stack)
    monkeypatch.setattr(NixlSender, "takes_sums", False)
    assert await ask(stack) == ahead
    assert [manifest.sums_follow for manifest in commits.heard] == [True, False]


async def test_a_client_that_leaves_before_the_sums_takes_the_commit_along(
    stack: Stack, commits: Commits
) -> None:
    asking = asyncio.ensure_future(ask(stack))
    await asyncio.wait_for(commits.some.wait(), 10)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await stack.prefill.expect_idle()
    assert stack.decode.core.worker.table.counters.adopted == 0


async def test_a_worker_that_adopts_for_ever_is_given_up_after_a_lease(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(_intake: Intake, _manifest: KvManifest, **_named: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(Intake, "commit", hang)
    profile = write_profile(tmp_path)
    decode = WAYS | {"lease_s": 0.3}
    async with running_stack(tiny_model_dir, profile, prefill=WAYS, decode=decode) as stack:
        answer = await stack.http.post("/v1/completions", json=BODY | {"tandem": {"mode": "both"}})
        assert answer.status_code == 502
        assert answer.json()["error"]["code"] == "kv_transfer_failed"
        await stack.prefill.expect_idle()
        assert stack.decode.core.worker.table.counters.adopted == 0
