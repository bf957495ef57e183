"""Every registered transport moves bytes under the same rules."""

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.errors import StaleWriteError, TransportError
from shared.transport.base import Grant
from shared.transport.registry import transport_registry
from tests.support.transfer_parts import MODEL, each_transport, receiver, registered
from tests.support.waiting import until

pytestmark = each_transport()


def test_every_registered_transport_is_tried(name: str) -> None:
    assert registered(name) in transport_registry().names()
    assert {"loopback", "grpc", "nixl"} == set(transport_registry().names())


async def test_bytes_arrive_intact_and_seal_means_they_are_there(name: str) -> None:
    payload = bytes(range(256)) * 20_000
    async with receiver(name, slab_bytes=2 * len(payload)) as end:
        lease, grant = end.grant(len(payload))
        sender = end.transport.sender()
        await sender.open(address=end.address, grant=grant)
        await sender.write(0, payload)
        stats = await sender.seal()
        assert end.bytes_of(lease) == payload
        assert stats.bytes == len(payload)
        assert stats.gbps > 0
        assert end.writer.closed == [True]


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cuts=st.lists(st.integers(0, 4_000), max_size=8), order=st.randoms(use_true_random=False))
def test_any_order_and_size_of_writes(name: str, cuts: list[int], order) -> None:
    async def run() -> None:
        payload = bytes(i * 7 % 251 for i in range(4_000))
        bounds = sorted({0, len(payload), *cuts})
        pieces = list(pairwise(bounds))
        order.shuffle(pieces)
        async with receiver(name) as end:
            lease, grant = end.grant(len(payload))
            sender = end.transport.sender()
            await sender.open(address=end.address, grant=grant)
            for start, stop in pieces:
                await sender.write(start, memoryview(payload)[start:stop])
            await sender.write(0, b"")
            await sender.seal()
            assert end.bytes_of(lease) == payload

    asyncio.run(run())


async def test_the_buffer_may_change_as_soon_as_write_returns(name: str) -> None:
    async with receiver(name) as end:
        lease, grant = end.grant(1_000)
        sender = end.transport.sender()
        await sender.open(address=end.address, grant=grant)
        buffer = bytearray(b"a" * 1_000)
        await sender.write(0, memoryview(buffer))
        buffer[:] = b"b" * 1_000
        await sender.seal()
        assert end.bytes_of(lease) == b"a" * 1_000


async def test_nothing_written_seals_too(name: str) -> None:
    async with receiver(name) as end:
        _, grant = end.grant(64)
        sender = end.transport.sender()
        await sender.open(address=end.address, grant=grant)
        stats = await sender.seal()
        assert stats.bytes == 0
        assert end.writer.closed == [True]


async def test_abort_is_safe_twice_and_ends_the_writer(name: str) -> None:
    async with receiver(name) as end:
        lease, grant = end.grant(1_000)
        sender = end.transport.sender()
        await sender.open(address=end.address, grant=grant)
        await sender.write(0, b"x" * 500)
        await until(lambda: end.bytes_of(lease)[:1] == b"x")
        await sender.abort()
        await sender.abort()
        await until(lambda: end.writer.closed == [False])
        with pytest.raises(TransportError):
            await sender.write(500, b"x")
        with pytest.raises(TransportError):
            await sender.seal()


async def test_another_token_is_refused_and_touches_nothing(name: str) -> None:
    async with receiver(name) as end:
        lease, grant = end.grant(64)
        for token in (b"", b"of another grant"):
            sender = end.transport.sender()
            refused = False
            try:  # when it opens, at the write, or where the transport hears of it later
                await sender.open(address=end.address, grant=replace(grant, token=token))
                await sender.write(0, b"x" * 64)
                await sender.seal()
            except StaleWriteError:
                refused = True
            assert refused
            await sender.abort()
        assert end.bytes_of(lease) == bytes(64)
        assert end.writer.closed == [], "a stranger's stream must not end the owner's"
        sender = end.transport.sender()
        await sender.open(address=end.address, grant=grant)
        await sender.write(0, b"y" * 64)
        await sender.seal()
        assert end.bytes_of(lease) == b"y" * 64


def test_a_grant_does_not_show_its_token(name: str) -> None:
    assert "secret" not in repr(Grant(slot=0, generation=1, token=b"secret", transports=(name,)))


async def test_abort_before_open_and_after_seal_changes_nothing(name: str) -> None:
    async with receiver(name) as end:
        unused = end.transport.sender()
        await unused.abort()
        _, grant = end.grant(64)
        sender = end.transport.sender()
        await sender.open(address=end.address, grant=grant)
        await sender.seal()
        await sender.abort()
        assert end.writer.closed == [True]


async def test_transport_close_is_safe_twice(name: str) -> None:
    async with receiver(name) as end:
        await end.transport.close()
        await end.transport.close()


async def test_a_stale_generation_is_refused_and_touches_nothing(name: str) -> None:
    async with receiver(name) as end:
        lease, grant = end.grant(100)
        sender = end.transport.sender()
        with pytest.raises(StaleWriteError):  # noqa: PT012  when it opens, or at a write
            await sender.open(address=end.address, grant=replace(grant, generation=99))
            await _write_until_refused(sender)
        await sender.abort()
        assert end.bytes_of(lease) == bytes(100)


async def test_a_lease_that_ends_half_way_refuses_the_rest(name: str) -> None:
    async with receiver(name) as end:
        first, sender = await end.half_written(b"1" * 100)
        end.slab.quarantine(first.slot, first.generation)
        with pytest.raises(StaleWriteError):
            await _write_until_refused(sender, offset=50)
        await sender.abort()
        await until(lambda: end.writer.closed == [False])
        assert end.writer.drained == [True], "the writer is still: its bytes may serve others"
        end.slab.release(first.slot, first.generation)
        second, _ = end.grant(100)
        assert (second.slot, second.offset) == (first.slot, first.offset)
        end.slab.write(slot=second.slot, generation=second.generation, offset=0, data=b"2" * 100)
        with pytest.raises((StaleWriteError, TransportError)):
            await sender.write(50, b"x" * 50)
        assert end.bytes_of(second) == b"2" * 100


async def test_bytes_outside_the_lease_are_refused(name: str) -> None:
    async with receiver(name) as end:
        _, grant = end.grant(100)
        sender = end.transport.sender()
        await sender.open(address=end.address, grant=grant)
        with pytest.raises(StaleWriteError, match="leave the lease"):
            await _write_until_refused(sender, offset=90, data=b"x" * 20)
        await sender.abort()


async def test_a_lost_lease_is_noticed_at_the_seal(name: str) -> None:
    async with receiver(name) as end:
        lease, grant = end.grant(100)
        sender = end.transport.sender()
        await sender.open(address=end.address, grant=grant)
        end.slab.release(lease.slot, lease.generation)
        with pytest.raises(StaleWriteError):
            await sender.seal()
        await sender.abort()


async def test_an_error_of_the_receiver_surfaces(name: str) -> None:
    async with receiver(name) as end:
        _, grant = end.grant(100)

        def fail() -> None:
            raise StaleWriteError("the reservation is over")

        end.writer.before_write = fail
        sender = end.transport.sender()
        await sender.open(address=end.address, grant=grant)
        with pytest.raises(StaleWriteError, match="the reservation is over"):
            await _write_until_refused(sender)
        await sender.abort()
        await until(lambda: end.writer.closed == [False])


async def test_a_silent_sender_keeps_its_lease(name: str) -> None:
    async with receiver(name) as end:
        _, grant = end.grant(100, lease_ms=120)
        sender = end.transport.sender()
        await sender.open(address=end.address, grant=grant)
        await until(lambda: end.writer.heartbeats >= 3)
        await sender.seal()


async def test_another_model_is_refused_by_name_of_the_field(name: str) -> None:
    async with receiver(name, sender_model=replace(MODEL, dtype="bfloat16")) as end:
        _, grant = end.grant(100)
        sender = end.transport.sender()
        with pytest.raises(TransportError, match=r"dtype: .*bfloat16"):
            await sender.open(address=end.address, grant=grant)
        await sender.abort()


async def test_a_served_name_may_differ(name: str) -> None:
    async with receiver(name, sender_model=replace(MODEL, name="alias")) as end:
        _, grant = end.grant(100)
        sender = end.transport.sender()
        await sender.open(address=end.address, grant=grant)
        await sender.seal()


async def test_a_restarted_receiver_is_refused(name: str) -> None:
    async with receiver(name) as end:
        _, grant = end.grant(100)
        sender = end.transport.sender()
        with pytest.raises(TransportError, match="restarted"):
            await sender.open(address=end.address, grant=replace(grant, incarnation="older"))


async def test_many_transfers_at_once_do_not_mix(name: str) -> None:
    async with receiver(name) as end:

        async def move(value: int) -> tuple[bytes, bytes]:
            payload = bytes([value]) * 30_000
            lease, grant = end.grant(len(payload))
            sender = end.transport.sender()
            await sender.open(address=end.address, grant=grant)
            for start in range(0, len(payload), 7_000):
                await sender.write(start, payload[start : start + 7_000])
            await sender.seal()
            return end.bytes_of(lease), payload

        for landed, sent in await asyncio.gather(*(move(i) for i in range(8))):
            assert landed == sent
        end.slab.check_integrity()


async def _write_until_refused(sender, *, offset: int = 0, data: bytes = b"x") -> None:
    """A refusal may reach the sender a moment after the write that caused it."""
    async with asyncio.timeout(20):
        while True:
            await sender.write(offset, data)
            await asyncio.sleep(0.01)
