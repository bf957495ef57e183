"""A lane whose end brings sums ahead of the last write: it is clean only once all of it landed."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from shared.errors import StaleWriteError, TransportError
from shared.transport.base import KvSender
from shared.transport.nixl_agent import NixlAgent
from shared.transport.nixl_lane import Lane
from shared.transport.nixl_receiver import NixlReceiver
from shared.transport.nixl_sender import NixlSender
from tests.support.transfer_parts import (
    NIXL_DEVICE,
    Receiver,
    needs_nixl,
    receiver,
)
from tests.support.waiting import until

SUMS = (3, 2**64 - 1)
SOON_S = 10.0


class HeldWrite:
    """The next write of an agent waits on its thread until a test lets it go, or has it fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._write: Callable[..., float] = NixlAgent._write
        self._go = threading.Event()
        self._error: Exception | None = None
        self.begun = threading.Event()

        def write(agent: NixlAgent, *parts: Any, **named: Any) -> float:
            return self._held(agent, *parts, **named)

        monkeypatch.setattr(NixlAgent, "_write", write)

    def go(self, error: Exception | None = None) -> None:
        self._error = error
        self._go.set()

    def _held(self, agent: NixlAgent, *parts: Any, **named: Any) -> float:
        self.begun.set()
        assert self._go.wait(SOON_S)
        if self._error is not None:
            raise self._error
        return self._write(agent, *parts, **named)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> HeldWrite:
    return HeldWrite(monkeypatch)


async def writing(end: Receiver, held: HeldWrite) -> tuple[KvSender, asyncio.Future[None]]:
    """A sender whose only write is on the agent's thread, held there."""
    _, grant = end.grant(100)
    sender = end.transport.sender()
    await sender.open(address=end.address, grant=grant)
    write = asyncio.ensure_future(sender.write(0, b"x" * 100))
    assert await asyncio.to_thread(held.begun.wait, SOON_S)
    return sender, write


def settling(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set when a receiver has heard an end and waits for notices."""
    heard, settle = asyncio.Event(), Lane._settle

    async def told(lane: Lane, *parts: Any, **named: Any) -> None:
        heard.set()
        await settle(lane, *parts, **named)

    monkeypatch.setattr(Lane, "_settle", told)
    return heard


@needs_nixl
async def test_the_end_is_heard_ahead_of_the_last_write_and_holds_with_it(
    held: HeldWrite, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = settling(monkeypatch)
    async with receiver(NIXL_DEVICE) as end:
        sender, write = await writing(end, held)
        assert sender.takes_sums
        seal = asyncio.ensure_future(sender.seal(sums=SUMS))
        await asyncio.wait_for(heard.wait(), SOON_S)
        assert end.writer.closed == []
        held.go()
        assert (await seal).bytes == 100
        await write
        assert (end.writer.closed, end.writer.drained) == ([True], [True])
        assert end.writer.sums == [SUMS]
        direct = end.direct
        assert isinstance(direct, NixlReceiver)
        await until(lambda: direct.num_lanes == 0)
        await sender.abort()  # a sealed one stays sealed
        assert end.writer.closed == [True]


@needs_nixl
async def test_a_last_write_that_fails_after_the_end_gives_the_slot_back_at_once(
    held: HeldWrite, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = settling(monkeypatch)
    async with receiver(NIXL_DEVICE) as end:
        sender, write = await writing(end, held)
        seal = asyncio.ensure_future(sender.seal(sums=SUMS))
        await asyncio.wait_for(heard.wait(), SOON_S)
        held.go(TransportError("the peer went away"))
        for part in (seal, write):
            with pytest.raises(TransportError, match="went away"):
                await part
        await sender.abort()
        await until(lambda: end.writer.closed == [False])
        assert end.writer.drained == [True]
        assert end.writer.sums == [()]


@needs_nixl
async def test_what_is_refused_after_the_end_is_refused(
    held: HeldWrite, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = settling(monkeypatch)
    async with receiver(NIXL_DEVICE) as end:
        sender, write = await writing(end, held)
        seal = asyncio.ensure_future(sender.seal(sums=SUMS))
        await asyncio.wait_for(heard.wait(), SOON_S)
        [lane] = end.direct._lanes.values() if end.direct else []
        end.slab.quarantine(lane._slot, lane._generation)
        held.go()
        with pytest.raises(StaleWriteError, match="in quarantine"):
            await seal
        await write
        await sender.abort()
        await until(lambda: end.writer.closed == [False])
        assert end.writer.drained == [True]


@needs_nixl
async def test_notices_that_are_lost_after_the_end_are_not_taken_for_success(
    held: HeldWrite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.transport.nixl_lane.SETTLE_SECONDS", 0.1)
    monkeypatch.setattr(Lane, "landed", lambda *_: None)
    async with receiver(NIXL_DEVICE) as end:
        sender, write = await writing(end, held)
        seal = asyncio.ensure_future(sender.seal(sums=SUMS))
        held.go()
        await write
        with pytest.raises(StaleWriteError, match="notices were lost"):
            await seal
        await sender.abort()
        await until(lambda: end.writer.closed == [False])
        assert end.writer.drained == [True]


@needs_nixl
async def test_a_sender_that_vanishes_after_the_end_bars_its_slot(
    held: HeldWrite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows whether its last write is still to come."""
    heard = settling(monkeypatch)
    async with receiver(NIXL_DEVICE) as end:
        sender, write = await writing(end, held)
        seal = asyncio.ensure_future(sender.seal(sums=SUMS))
        await asyncio.wait_for(heard.wait(), SOON_S)
        assert isinstance(sender, NixlSender)
        assert sender._lane is not None
        sender._lane.call.cancel()
        await until(lambda: end.writer.closed == [False])
        assert end.writer.drained == [False]
        held.go()
        await asyncio.gather(seal, write, return_exceptions=True)
        await sender.abort()


@needs_nixl
async def test_sums_for_a_lane_to_host_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiver("nixl") as end:
        _, grant = end.grant(100)
        sender = end.transport.sender()
        await sender.open(address=end.address, grant=grant)
        assert not sender.takes_sums
        await sender.write(0, b"x" * 100)
        with pytest.raises(TransportError, match="sums came"):
            await sender.seal(sums=SUMS)
        await sender.abort()
        await until(lambda: end.writer.closed == [False])


@needs_nixl
async def test_more_sums_than_a_cache_has_segments_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shared.transport.nixl_lane.MOST_SUMS", 1)
    async with receiver(NIXL_DEVICE) as end:
        _, grant = end.grant(100)
        sender = end.transport.sender()
        await sender.open(address=end.address, grant=grant)
        await sender.write(0, b"x" * 100)
        with pytest.raises(TransportError, match="2 sums came"):
            await sender.seal(sums=SUMS)
        await sender.abort()
        await until(lambda: end.writer.closed == [False])
        assert end.writer.sums == [()]


@needs_nixl
async def test_a_receiver_of_an_earlier_version_is_brought_none() -> None:
    async with receiver(NIXL_DEVICE) as end:
        _, grant = end.grant(100)
        sender = end.transport.sender()
        assert not sender.takes_sums  # nobody has said so yet
        await sender.open(address=end.address, grant=grant)
        assert isinstance(sender, NixlSender)
        assert sender._lane is not None
        sender._lane.terms.ClearField("takes_sums")
        assert not sender.takes_sums
        await sender.write(0, b"x" * 100)
        await sender.seal()
        assert end.writer.sums == [()]


@pytest.mark.parametrize("name", ["grpc", "loopback"])
async def test_other_transports_take_no_sums(name: str) -> None:
    async with receiver(name) as end:
        assert not end.transport.sender().takes_sums
