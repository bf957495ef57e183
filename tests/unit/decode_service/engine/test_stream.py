"""Bounded delivery of tokens to one reader."""

import asyncio

from decode_service.engine.stream import Ending, TokenStream
from shared.types.sampling import FinishReason, SampledToken

DONE = Ending(reason=FinishReason.STOP)


def tokens(*ids: int) -> list[SampledToken]:
    return [SampledToken(token_id=i) for i in ids]


def send(stream: TokenStream, *ids: int) -> None:
    stream.count(len(ids))
    stream.deliver(tokens(*ids), None)


async def test_reader_gets_all_in_order_and_the_ending_once() -> None:
    stream = TokenStream(limit=8, on_room=lambda: None)
    send(stream, 1, 2)
    assert await stream.next() == (tokens(1, 2), None)
    send(stream, 3)
    stream.deliver([], DONE)
    assert await stream.next() == (tokens(3), DONE)
    assert await stream.next() == ([], DONE)


async def test_reader_waits_for_the_writer() -> None:
    stream = TokenStream(limit=8, on_room=lambda: None)
    reading = asyncio.create_task(stream.next())
    await asyncio.sleep(0)
    assert not reading.done()
    send(stream, 5)
    assert await reading == (tokens(5), None)


async def test_full_until_the_reader_asks_for_more() -> None:
    rooms: list[int] = []
    stream = TokenStream(limit=3, on_room=lambda: rooms.append(1))
    send(stream, 1, 2, 3)
    assert stream.full
    await stream.next()
    assert stream.full, "what was handed out counts until the reader comes back"
    assert rooms == []
    send(stream, 4)
    await stream.next()
    assert rooms == [1], "told that there is room again"
    assert stream.full is False
