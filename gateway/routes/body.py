"""Reading a request body within its limit."""

from starlette.requests import Request

from shared.errors import RequestTooLargeError


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


def _too_large(size: int, limit: int) -> RequestTooLargeError:
    return RequestTooLargeError(
        f"the body has {size} bytes or more, over the limit of {limit}; send a shorter prompt, "
        "or raise the gateway's max_body_bytes"
    )
