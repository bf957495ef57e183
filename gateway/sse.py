"""Server-sent events as OpenAI clients read them: data lines and comments, nothing else."""

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
