"""Server-sent events as OpenAI clients read them: never an id or a retry line."""

from typing import Any

import orjson

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


def frame(value: dict[str, Any]) -> bytes:
    """One JSON object on one data line; numbers that JSON lacks become null."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


def named_frame(value: dict[str, Any]) -> bytes:
    """The same with an event line, which repeats the object's `type`."""
    kind: str = value["type"]
    return b"event: " + kind.encode() + b"\n" + frame(value)
