"""Reading a request body within its limit, and parsing it without stalling other streams."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from starlette.requests import Request

from shared.errors import RequestTooLargeError, UploadTimeoutError

T = TypeVar("T")

UPLOAD_S = 120.0
"""How long a body may take to arrive, in seconds; then it is 408."""

_PARSE_AT_ONCE_BYTES = 128 * 1024
"""Parsing so much takes under a millisecond, which a thread's turn at the interpreter costs too."""


async def read_body(request: Request, *, limit: int) -> bytes:
    """The whole body; reading stops as soon as the limit is passed.

    Raises:
        RequestTooLargeError: more than `limit` bytes are announced or arrive.
        UploadTimeoutError: it does not arrive in time.
        starlette.requests.ClientDisconnect: the client left.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced[:20]) > limit:
        raise _too_large(int(announced[:20]), limit)
    body = bytearray()
    try:
        async with asyncio.timeout(UPLOAD_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise _too_large(len(body), limit)
    except TimeoutError:
        raise UploadTimeoutError(
            f"{len(body)} bytes of the body arrived in {UPLOAD_S:g} s, and not its end: the client "
            "stalled, or its network is slow; send it again, or a shorter prompt"
        ) from None
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
