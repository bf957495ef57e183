"""A cache in device memory is complete before its first token is drawn, and is handed over then."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from prefill_service.engine import compute
from shared.errors import InternalError
from shared.types.handoff import HandoffKey
from tests.support.decode_peer import DecodePeer
from tests.support.prefill_worker import (
    MEMORIES,
    PER_HEAD_PROFILE,
    SOON_S,
    Worker,
    decode_peers,
    event_of,
    kinds,
    prefill_worker,
    prompt_ids,
    prompt_request,
)
from tests.support.transfer_parts import needs_nixl
from tests.support.waiting import until

pytestmark = needs_nixl


@pytest.fixture
async def worker(tiny_model_dir: Path, tmp_path: Path) -> AsyncIterator[Worker]:
    profile = tmp_path / "head.toml"
    profile.write_text(PER_HEAD_PROFILE)
    settings = MEMORIES["device"] | {"profile": str(profile)}
    async with prefill_worker(tiny_model_dir, **settings) as running:
        yield running


@pytest.fixture
async def peer(worker: Worker) -> AsyncIterator[DecodePeer]:
    async with decode_peers(worker) as (only,):
        yield only


class HeldDraw:
    """The draw of first tokens, which waits until a test lets it go or has it fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._draw = compute.first_tokens
        self._go = threading.Event()
        self._error: Exception | None = None
        self.begun = threading.Event()
        monkeypatch.setattr(compute, "first_tokens", self._held)

    def go(self, error: Exception | None = None) -> None:
        self._error = error
        self._go.set()

    def _held(self, *arguments: Any, **named: Any) -> Any:
        self.begun.set()
        assert self._go.wait(SOON_S)
        if self._error is not None:
            raise self._error
        return self._draw(*arguments, **named)


@pytest.fixture
def draw(monkeypatch: pytest.MonkeyPatch) -> HeldDraw:
    return HeldDraw(monkeypatch)


@pytest.mark.parametrize("length", [31, 200], ids=["whole", "pruned"])
async def test_nobody_waits_for_the_first_token(
    worker: Worker, peer: DecodePeer, draw: HeldDraw, length: int
) -> None:
    request = prompt_request(prompt_ids(length), [peer])
    key = HandoffKey(request.handoff.handoff_id, 1)
    seen: list[Any] = []
    async for response in worker.stub.Prefill(request, timeout=30):
        seen.append(event_of(response))
        if kinds(seen)[-1] == "PrefillStarted" and not peer.adopted:
            await until(lambda: key in peer.adopted)
            assert await asyncio.to_thread(draw.begun.wait, SOON_S)
            draw.go()
    assert kinds(seen) == ["PrefillAccepted", "PrefillStarted", "FirstTokens", "PrefillSealed"]
    manifest = peer.adopted[key].manifest
    assert manifest.first_tokens_follow
    assert not manifest.first_tokens
    await worker.expect_idle()


async def test_a_draw_that_fails_takes_back_what_was_adopted(
    worker: Worker, peer: DecodePeer, draw: HeldDraw
) -> None:
    request = prompt_request(prompt_ids(200), [peer])
    key = HandoffKey(request.handoff.handoff_id, 1)
    running = asyncio.ensure_future(worker.run(request))
    await until(lambda: key in peer.adopted)
    draw.go(InternalError("every token is ruled out"))
    events = await running
    assert kinds(events)[-1] == "ErrorDetail"
    assert [aborted for aborted, _ in peer.aborted] == [key]
    await worker.expect_idle()
    assert worker.engine.load().held_handoffs == 0


async def test_a_caller_that_leaves_before_the_draw_takes_it_back_too(
    worker: Worker, peer: DecodePeer, draw: HeldDraw
) -> None:
    request = prompt_request(prompt_ids(200), [peer])
    key = HandoffKey(request.handoff.handoff_id, 1)
    call = worker.stub.Prefill(request, timeout=30)
    reading = asyncio.ensure_future(call.read())
    await until(lambda: key in peer.adopted)
    await reading
    (job,) = worker.engine._jobs.values()
    call.cancel()
    # The worker hears of it while the token is still drawn: a moment later the prompt is done.
    await until(job.stopping)
    draw.go()
    await worker.expect_idle()
    assert [aborted for aborted, _ in peer.aborted] == [key]


async def test_a_count_that_the_scores_settle_is_said_with_the_first_token(
    worker: Worker, peer: DecodePeer, draw: HeldDraw
) -> None:
    """Until then nobody beside the computing thread knows what was kept."""
    options = {"mode": "MODE_PRUNE", "mass": 0.5, "min_rate": 0.2, "max_rate": 0.6}
    request = prompt_request(prompt_ids(200), [peer], options=options)
    key = HandoffKey(request.handoff.handoff_id, 1)
    running = asyncio.ensure_future(worker.run(request))
    assert await asyncio.to_thread(draw.begun.wait, SOON_S)
    assert key not in peer.adopted
    draw.go()
    events = await running
    assert kinds(events)[-1] == "PrefillSealed"
    manifest = peer.adopted[key].manifest
    drawn = next(e for e in events if type(e).__name__ == "FirstTokens")
    assert [t.token_id for t in manifest.first_tokens] == [t.token_id for t in drawn.tokens]
    assert not manifest.first_tokens_follow
