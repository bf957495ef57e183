"""Reading a request body within its limit, and parsing it without stalling other streams."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from starlette.requests import Request

from shared.errors import RequestTooLargeError

T = TypeVar("T")

_PARSE_AT_ONCE_BYTES = 64 * 1024


async def read_body(request: Request, *, limit: int) -> bytes:
    """The whole body; reading stops as soon as the limit is passed.

    Raises:
        RequestTooLargeError: more than `limit` bytes are announced or arrive.
        starlette.requests.ClientDisconnect: the client left.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced[:20]) > limit:
        raise _too_large(int(announced[:20]), limit)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise _too_large(len(body), limit)
    return bytes(body)


async def parsed(raw: bytes, parse: Callable[[bytes], T]) -> T:
    """What `parse` makes of a body; of a large one beside the loop, for it takes long enough."""
    if len(raw) <= _PARSE_AT_ONCE_BYTES:
        return parse(raw)
    return await asyncio.to_thread(parse, raw)


def _too_large(size: int, limit: int) -> RequestTooLargeError:
    return RequestTooLargeError(
        f"the body has {size} bytes or more, over the limit of {limit}; send a shorter prompt, "
        "or raise the gateway's max_body_bytes"
    )
