"""Requests of a recorded trace: when they came, how long they were, what they had in common.

The form is Mooncake's (Qin et al., FAST 2025; github.com/kvcache-ai/Mooncake): one JSON object
a line with `timestamp` in milliseconds, `input_length`, `output_length`, and `hash_ids`, a name for
each 512 tokens of the prompt, equal where prompts are.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from shared.errors import ConfigError

BLOCK_TOKENS = 512
"""Prompt tokens that one name stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One recorded request."""

    due_s: float
    """Since the trace's first request."""
    prompt_tokens: int
    """At least 1."""
    answer_tokens: int
    """At least 1."""
    blocks: tuple[int, ...]
    """Names of the prompt's parts, in order; empty: it has nothing in common with another."""


def read_trace(path: Path, *, seconds: float) -> list[TraceRow]:
    """The requests that came within the trace's first seconds, in order.

    Raises:
        ConfigError: the file cannot be read, a line is no such request, or none came.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"trace {path} cannot be read ({error}); give another file") from error
    rows = [_row(line, place=f"{path}:{number}") for number, line in enumerate(lines, start=1)]
    if not rows:
        raise ConfigError(f"trace {path} is empty; give another file")
    rows.sort(key=lambda row: row.due_s)
    first = rows[0].due_s
    return [
        TraceRow(
            due_s=row.due_s - first,
            prompt_tokens=row.prompt_tokens,
            answer_tokens=row.answer_tokens,
            blocks=row.blocks,
        )
        for row in rows
        if row.due_s - first < seconds
    ]


def _row(line: bytes, *, place: str) -> TraceRow:
    try:
        found = orjson.loads(line)
        row = TraceRow(
            due_s=float(found["timestamp"]) / 1000,
            prompt_tokens=_count(found["input_length"]),
            answer_tokens=_count(found["output_length"]),
            blocks=tuple(int(name) for name in found.get("hash_ids", ())),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{place} is no request ({type(error).__name__}: {error}): it has timestamp, "
            "input_length, output_length and, if prompts share parts, hash_ids; mend the line"
        ) from error
    if row.blocks and len(row.blocks) * BLOCK_TOKENS < row.prompt_tokens:
        raise ConfigError(
            f"{place} names {len(row.blocks)} parts of {BLOCK_TOKENS} tokens for a prompt of "
            f"{row.prompt_tokens}: the trace has other parts; leave hash_ids out or name them all"
        )
    return row


def _count(value: Any) -> int:  # noqa: ANN401  whatever the JSON has
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{value!r} is no number of tokens")
    return value
