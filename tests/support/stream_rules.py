"""The rules that a stream keeps, each with what openai-python does to one that breaks it.

`kept` looks at bytes from the wire, `broken` makes such bytes that break this rule out of a stream
of ours, and `shows` asserts what the client makes of those: a client that has learnt to cope fails
there, so that no rule outlives its reason.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

import openai
import pytest

from tests.support.gateway_rig import strict_json
from tests.support.stream_edits import (
    DONE,
    Chunk,
    choices_in,
    chunks_in,
    edited,
    frame_of,
    frames_of,
    with_choices,
)
from tests.support.stream_reader import chunks_of, final_of


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule."""

    name: str
    """As a test id."""
    kept: Callable[[bytes], bool]
    """Whether a whole stream keeps it."""
    of: str = "chat"
    """The recorded stream that is broken."""
    broken: Callable[[bytes], bytes]
    """That stream with the rule broken."""
    shows: Callable[[bytes], None]
    """Asserts what a client does with it."""


def _fails(kind: type[Exception]) -> Callable[[bytes], None]:
    def show(raw: bytes) -> None:
        with pytest.raises(kind):
            final_of(raw)

    return show


def _decodes(frame: bytes) -> bool:
    try:
        frame.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _is_strict(frame: bytes) -> bool:
    payload = frame.removeprefix(b"data: ").decode("utf-8", errors="replace")
    try:
        strict_json(payload)
    except ValueError:
        return False
    return True


def _only_data_and_comments(raw: bytes) -> bool:
    return all(line.startswith((b"data: ", b": ")) for line in raw.split(b"\n") if line)


def _reads_a_chunk_without_choices(raw: bytes) -> None:
    first, *rest = chunks_of(raw)
    assert getattr(first, "choices", None) is None
    assert rest


def _loses_the_error(raw: bytes) -> None:
    with pytest.raises(openai.APIError, match="pages lost"):
        chunks_of(raw + b"\n")
    chunks_of(raw)


def _ends_in_silence(raw: bytes) -> None:
    assert final_of(raw).choices[0].finish_reason is None


def _ends_with_an_error_or_done(raw: bytes) -> bool:
    chunks, dones = chunks_in(raw), raw.count(DONE)
    errors = [chunk for chunk in chunks if "error" in chunk]
    if errors:
        return errors == chunks[-1:] and dones == 0 and frames_of(raw)[-1] == frame_of(errors[0])
    return dones == 1 and raw.endswith(DONE)


def _errors_are_objects(raw: bytes) -> bool:
    errors = [chunk["error"] for chunk in chunks_in(raw) if "error" in chunk]
    return all(
        isinstance(e, dict)
        and set(e) == {"message", "type", "param", "code"}
        and isinstance(e["code"], str)
        for e in errors
    )


def _loses_message_and_code(raw: bytes) -> None:
    with pytest.raises(openai.APIError) as caught:
        chunks_of(raw)
    assert (caught.value.code, caught.value.message) == (
        None,
        "An error occurred during streaming",
    )


def _as_string_error(chunk: Chunk) -> Chunk:
    return {"error": chunk["error"]["message"]} if "error" in chunk else chunk


def _parses_what_others_refuse(raw: bytes) -> None:
    assert final_of(raw).choices[0].logprobs is not None
    with pytest.raises(ValueError, match="Infinity"):
        [strict_json(f.removeprefix(b"data: ").decode()) for f in frames_of(raw) if b"{" in f]


def _usage_is_last(raw: bytes) -> bool:
    chunks = [chunk for chunk in chunks_in(raw) if "error" not in chunk]
    whole = not any("error" in chunk for chunk in chunks_in(raw))
    if not whole or not any("usage" in chunk for chunk in chunks):
        return not any(chunk["choices"] == [] for chunk in chunks)
    last = chunks[-1]
    rest = [chunk["choices"] for chunk in chunks[:-1]]
    return last["choices"] == [] and bool(last["usage"]) and all(rest)


def _loses_usage(raw: bytes) -> None:
    assert final_of(raw).usage is None


def _metrics_after_usage(raw: bytes) -> bytes:
    after = {**chunks_in(raw)[-1], "usage": None, "metrics": {"ttft_ms": 1}}
    return raw.removesuffix(DONE) + frame_of(after) + DONE


def _has_choices(raw: bytes) -> bool:
    return all("choices" in chunk or "error" in chunk for chunk in chunks_in(raw))


def _without_choices(chunk: Chunk) -> Chunk:
    return chunk if chunk["choices"] else {k: v for k, v in chunk.items() if k != "choices"}


def _one_envelope(raw: bytes) -> bool:
    chunks = [chunk for chunk in chunks_in(raw) if "error" not in chunk]
    keys = ("id", "created", "model", "object", "system_fingerprint")
    return all(len({chunk[key] for chunk in chunks}) == 1 for key in keys)


def _another_id_at_the_end(chunk: Chunk) -> Chunk:
    return chunk if chunk["choices"] else {**chunk, "id": "chatcmpl-other"}


def _has_two_names(raw: bytes) -> None:
    assert len({chunk.id for chunk in chunks_of(raw)}) == 2
    assert final_of(raw).id != "chatcmpl-other"


def _in_order(raw: bytes) -> bool:
    seen = list(dict.fromkeys(choice["index"] for choice in choices_in(raw)))
    return seen == list(range(len(seen)))


def _without_the_first_choice(chunk: Chunk) -> Chunk | None:
    kept = [choice for choice in chunk["choices"] if choice["index"] > 0]
    return {**chunk, "choices": kept} if kept or not chunk["choices"] else None


def _reasons_come_once(raw: bytes) -> bool:
    if any("error" in chunk for chunk in chunks_in(raw)):
        return not any(choice["finish_reason"] for choice in choices_in(raw))
    by_choice: dict[int, list[Chunk]] = {}
    for choice in choices_in(raw):
        by_choice.setdefault(choice["index"], []).append(choice)
    return all(
        [c["finish_reason"] is not None for c in own] == [False] * (len(own) - 1) + [True]
        and own[-1].get("delta", {}) == {}
        and own[-1].get("text", "") == ""
        for own in by_choice.values()
    )


def _without_reasons(choice: Chunk) -> None:
    choice["finish_reason"] = None


FRAMING = (
    Rule(
        name="a blank line ends the last frame, else the client drops it",
        kept=lambda raw: raw.endswith(b"\n\n"),
        of="failed",
        broken=lambda raw: raw.removesuffix(b"\n"),
        shows=_loses_the_error,
    ),
    Rule(
        name="a blank line ends every frame, else two of them are read as one",
        kept=lambda raw: not any(b"\n" in frame.strip() for frame in frames_of(raw)),
        broken=lambda raw: raw.replace(b"\n\n", b"\n", 1),
        shows=_fails(json.JSONDecodeError),
    ),
    Rule(
        name="every frame is whole UTF-8, else the stream dies",
        kept=lambda raw: all(_decodes(frame) for frame in frames_of(raw)),
        broken=lambda raw: raw.replace("漢".encode(), "漢".encode()[:2], 1),
        shows=_fails(UnicodeDecodeError),
    ),
    Rule(
        name="no ids, else every comment after one is read as an empty event",
        kept=_only_data_and_comments,
        of="late",
        broken=lambda raw: b"id: 1\n" + raw[raw.index(b"data") :].replace(DONE, b": ping\n\n"),
        shows=_fails(json.JSONDecodeError),
    ),
    Rule(
        name="no retry line, else it is read as an empty event",
        kept=_only_data_and_comments,
        broken=lambda raw: b"retry: 500\n\n" + raw,
        shows=_fails(json.JSONDecodeError),
    ),
    Rule(
        name="keep-alives are comments, else a named ping is read as a chunk",
        kept=_only_data_and_comments,
        broken=lambda raw: b"event: ping\ndata: {}\n\n" + raw,
        shows=_reads_a_chunk_without_choices,
    ),
    Rule(
        name="numbers are JSON, else clients in other languages refuse them",
        kept=lambda raw: all(_is_strict(f) for f in frames_of(raw) if f.startswith(b"data: {")),
        of="logprobs",
        broken=lambda raw: raw.replace(b'"logprob":-0.5', b'"logprob":-Infinity'),
        shows=_parses_what_others_refuse,
    ),
)

ENDING = (
    Rule(
        name="a failure is an error frame, else the client takes the answer for whole",
        kept=_ends_with_an_error_or_done,
        of="failed",
        broken=lambda raw: b"".join(frames_of(raw)[:-1]),
        shows=_ends_in_silence,
    ),
    Rule(
        name="an error is an object, else message and code are lost",
        kept=_errors_are_objects,
        of="failed",
        broken=lambda raw: edited(raw, _as_string_error),
        shows=_loses_message_and_code,
    ),
    Rule(
        name="usage is in the last chunk, else what follows erases it",
        kept=_usage_is_last,
        broken=_metrics_after_usage,
        shows=_loses_usage,
    ),
    Rule(
        name="a reason comes once, with an empty delta, else nobody knows that an answer ended",
        kept=_reasons_come_once,
        broken=lambda raw: with_choices(raw, _without_reasons),
        shows=_ends_in_silence,
    ),
)

ENVELOPE = (
    Rule(
        name="every chunk has choices, else the helper fails",
        kept=_has_choices,
        broken=lambda raw: edited(raw, _without_choices),
        shows=_fails(TypeError),
    ),
    Rule(
        name="id, time, model and object stay the same, else an answer has two names",
        kept=_one_envelope,
        broken=lambda raw: edited(raw, _another_id_at_the_end),
        shows=_has_two_names,
    ),
    Rule(
        name="choices appear in order, else the helper fails",
        kept=_in_order,
        of="choices",
        broken=lambda raw: edited(raw, _without_the_first_choice),
        shows=_fails(IndexError),
    ),
)
