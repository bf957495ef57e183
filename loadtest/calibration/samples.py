"""The prompts of a calibration: a seeded needle mixture, a user's own prompts, or both."""

import json
from pathlib import Path
from typing import Any

from loadtest.quality.tasks.needle import (
    LONG_VALUE_TASKS,
    MIXTURE_LENGTHS,
    NEEDLE_TASKS,
    needle_mixture,
)
from loadtest.quality.tasks.prompt import Draft, PromptWriter
from loadtest.quality.tasks.sample import Sample, Span
from shared.errors import ConfigError

USER_TASK = "user"
"""Task name of the samples that come from a file."""

_KEYS = ("prompt", "answer", "needle")
_USER_ANSWER_TOKENS = 32
_ANSWER_ROOM = 64


def fitting_lengths(max_position: int) -> tuple[int, ...]:
    """The mixture's lengths that a context can hold; the whole context when it holds none."""
    room = max_position - _ANSWER_ROOM
    return tuple(length for length in MIXTURE_LENGTHS if length <= room) or (room,)


def generated_samples(
    writer: PromptWriter, *, count: int, lengths: tuple[int, ...], seed: int
) -> list[Sample]:
    """`count` samples of the needle mixture, a third of them with long values.

    The same for the same seed and tokenizer.
    """
    return list(
        needle_mixture(
            writer,
            count=count,
            tasks=(*NEEDLE_TASKS, *LONG_VALUE_TASKS),
            lengths=lengths,
            seed=seed,
        )
    )


def read_samples(writer: PromptWriter, path: Path) -> list[Sample]:
    """A user's prompts, one JSON object a line.

    Its keys: `prompt` (the user's message), and if they are known `answer` (the right answer, word
    for word) and `needle` (the words of the prompt that it depends on).

    Raises:
        ConfigError: the file or a line of it cannot be used.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the prompts file {path} cannot be read ({error}): check the path; it holds one JSON "
            'object a line, such as {"prompt": "..."}'
        ) from error
    return [
        _sample(writer, line, number=number, path=path)
        for number, line in enumerate(lines)
        if line.strip()
    ]


def _sample(writer: PromptWriter, line: str, *, number: int, path: Path) -> Sample:
    entry = _entry(line, where=f"{path}, line {number + 1}")
    needle, answer = entry.get("needle", ""), entry.get("answer", "")
    at = entry["prompt"].find(needle)
    draft = Draft(
        context=entry["prompt"],
        question="",
        answer=answer,
        marks=(Span(at, at + len(needle)),) if needle else (),
    )
    written = writer.write(draft)
    return Sample(
        task=USER_TASK,
        prompt_ids=written.token_ids,
        answer_text=answer,
        answer_ids=written.answer_ids if answer else (),
        answers=(answer,) if answer else (),
        question_span=written.question_span,
        needle_spans=written.mark_spans,
        depth=None,
        length=len(written.token_ids),
        seed=number,
        max_new_tokens=max(_USER_ANSWER_TOKENS, len(written.answer_ids)),
    )


def _entry(line: str, *, where: str) -> dict[str, str]:
    try:
        entry: Any = json.loads(line)
    except ValueError as error:
        raise ConfigError(
            f'{where} is no JSON ({error}): write one object a line, such as {{"prompt": "..."}}'
        ) from error
    good = (
        isinstance(entry, dict)
        and set(entry) <= set(_KEYS)
        and all(isinstance(value, str) and value for value in entry.values())
        and "prompt" in entry
    )
    if not good:
        raise ConfigError(
            f"{where}: an entry is an object with a `prompt`, and if known an `answer` and a "
            "`needle`, all texts; correct it"
        )
    if entry.get("needle", "") not in entry["prompt"]:
        raise ConfigError(
            f"{where}: the needle is not in the prompt word for word; copy it from there"
        )
    return dict(entry)
