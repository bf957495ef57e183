"""Cards in Redis that would lead elsewhere are not believed."""

from dataclasses import replace
from uuid import uuid4

from shared.discovery.address_guard import AddressGuard
from shared.discovery.redis import RedisDiscovery, RedisSettings
from tests.support.worker_cards import CARD

HOSTILE = ("169.254.169.254:80", "unix:/run/docker.sock", "dns:///x:1", "[fe80::1]:1")


async def test_only_cards_at_allowed_addresses_are_listed(redis_url: str) -> None:
    settings = RedisSettings(url=redis_url, namespace=uuid4().hex, poll_s=0.02)
    writers = [RedisDiscovery(settings) for _ in range(len(HOSTILE) + 1)]
    reader = RedisDiscovery(settings, roles=("decode",), guard=AddressGuard())
    try:
        for index, (writer, address) in enumerate(
            zip(writers, (*HOSTILE, "10.0.0.7:8201"), strict=True)
        ):
            await writer.publish(replace(CARD, worker_id=f"d{index}", address=address))
        await reader.start()
        assert [card.address for card in reader.cards("decode")] == ["10.0.0.7:8201"]
        believing = RedisDiscovery(settings, roles=("decode",))
        await believing.start()
        assert len(believing.cards("decode")) == len(HOSTILE) + 1
        await believing.close()
    finally:
        for each in (*writers, reader):
            await each.close()
