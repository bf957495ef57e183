"""Streams taken apart and put together again, so that a test can break them on purpose."""

from collections.abc import Callable
from typing import Any

import orjson

DONE = b"data: [DONE]\n\n"

Chunk = dict[str, Any]


def frames_of(raw: bytes) -> list[bytes]:
    """Frames with their blank lines, comments among them."""
    return [piece + b"\n\n" for piece in raw.split(b"\n\n") if piece]


def chunk_of(frame: bytes) -> Chunk | None:
    """The object of a frame; None for a comment and for [DONE]."""
    if not frame.startswith(b"data: {"):
        return None
    return dict(orjson.loads(frame.removeprefix(b"data: ")))


def frame_of(chunk: Chunk) -> bytes:
    """An object as a frame."""
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


def chunks_in(raw: bytes) -> list[Chunk]:
    """Every object of a stream, an error among them."""
    return [chunk for frame in frames_of(raw) if (chunk := chunk_of(frame)) is not None]


def choices_in(raw: bytes) -> list[Chunk]:
    """Every entry of `choices`, in order."""
    return [choice for chunk in chunks_in(raw) for choice in chunk.get("choices", ())]


def calls_in(raw: bytes) -> list[Chunk]:
    """Every fragment of a tool call of the first choice."""
    return [
        call
        for choice in choices_in(raw)
        if choice["index"] == 0
        for call in choice.get("delta", {}).get("tool_calls", ())
    ]


def edited(raw: bytes, edit: Callable[[Chunk], Chunk | None]) -> bytes:
    """The stream with every object changed; one that becomes None is left out."""
    out: list[bytes] = []
    for frame in frames_of(raw):
        chunk = chunk_of(frame)
        if chunk is None:
            out.append(frame)
            continue
        changed = edit(chunk)
        if changed is not None:
            out.append(frame_of(changed))
    return b"".join(out)


def with_choices(raw: bytes, edit: Callable[[Chunk], None]) -> bytes:
    """The stream with every entry of `choices` changed in place."""

    def change(chunk: Chunk) -> Chunk:
        for choice in chunk.get("choices", ()):
            edit(choice)
        return chunk

    return edited(raw, change)


def with_calls(raw: bytes, edit: Callable[[Chunk], None]) -> bytes:
    """The stream with every fragment of a tool call changed in place."""

    def change(choice: Chunk) -> None:
        for call in choice.get("delta", {}).get("tool_calls", ()):
            edit(call)

    return with_choices(raw, change)
