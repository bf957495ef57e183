"""Samples from a folder of LongBench's own data files, one `<task>.jsonl` for each task."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from loadtest.quality.tasks.longbench_tasks import LONGBENCH_TASKS, LongBenchTask
from loadtest.quality.tasks.prompt import Draft, PromptWriter
from loadtest.quality.tasks.sample import Sample
from shared.errors import ConfigError

PROMPTS_FILE = "dataset2prompt.json"
_CONTEXT = "{context}"
_INPUT = "{input}"


@dataclass(frozen=True)
class LongBenchFolder:
    """Data files, and the prompts that go with them."""

    path: Path
    """Where the files lie."""
    tasks: Mapping[str, LongBenchTask]
    """The tasks whose files exist, in LongBench's order."""
    own_prompts: bool
    """The folder has no prompts of LongBench's, so scores do not compare with published ones."""

    @classmethod
    def open(cls, path: Path, *, tasks: Sequence[str] | None = None) -> "LongBenchFolder":
        """Looks which files there are.

        Args:
            path: the folder.
            tasks: those that must exist; None takes what is there.

        Raises:
            ConfigError: a task is unknown or has no file, or the prompts cannot be read.
        """
        unknown = [name for name in tasks or () if name not in LONGBENCH_TASKS]
        if unknown:
            raise ConfigError(
                f"no LongBench task {unknown[0]!r}: choose among {', '.join(LONGBENCH_TASKS)}"
            )
        there = [name for name in LONGBENCH_TASKS if (path / f"{name}.jsonl").is_file()]
        missing = [name for name in tasks or () if name not in there]
        if missing or not there:
            name = missing[0] if missing else next(iter(LONGBENCH_TASKS))
            raise ConfigError(
                f"{path} has no {name}.jsonl: unpack LongBench's data there and name that folder"
            )
        prompts = _read_prompts(path / PROMPTS_FILE)
        return cls(
            path=path,
            tasks={
                name: replace(LONGBENCH_TASKS[name], prompt=prompts[name])
                if name in prompts
                else LONGBENCH_TASKS[name]
                for name in there
                if tasks is None or name in tasks
            },
            own_prompts=not prompts,
        )

    def samples(
        self, writer: PromptWriter, *, max_prompt_tokens: int, per_task: int | None = None
    ) -> Iterator[Sample]:
        """The records of all tasks, in the files' order.

        Args:
            writer: writes for the model.
            max_prompt_tokens: longer prompts lose their middle.
            per_task: how many records of a file; None takes all.

        Raises:
            ConfigError: a file is not what LongBench publishes.
        """
        for name, task in self.tasks.items():
            records = _records(self.path / f"{name}.jsonl")
            for number, record in enumerate(islice(records, per_task)):
                draft = _shortened(writer, _draft(task, record), limit=max_prompt_tokens)
                yield _sample(writer, draft, name=name, record=record, number=number, task=task)


def _read_prompts(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    prompts = _parse(path.read_text(encoding="utf-8"), where=str(path))
    for name in LONGBENCH_TASKS:
        if _CONTEXT not in str(prompts.get(name, "")):
            raise ConfigError(
                f"{path} has no prompt with {_CONTEXT} for {name}: take LongBench's own file, or "
                "remove it to use the built-in prompts"
            )
    return {name: prompts[name] for name in LONGBENCH_TASKS}


def _records(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"line {number} of {path}"
            record = _parse(line, where=where)
            lacking = [key for key in ("context", "input", "answers") if key not in record]
            if lacking or not record["answers"]:
                raise ConfigError(
                    f"{where} has no {lacking[0] if lacking else 'answers'}: it is not a record "
                    "of LongBench; download the data again"
                )
            yield record


def _parse(text: str, *, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON ({error}): download the data again") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{where} holds no JSON object: download the data again")
    return value


def _draft(task: LongBenchTask, record: dict[str, Any]) -> Draft:
    head, _, tail = task.prompt.partition(_CONTEXT)
    return Draft(
        context=head.replace(_INPUT, record["input"]) + record["context"],
        question=tail.replace(_INPUT, record["input"]),
        answer=str(record["answers"][0]),
        chat=task.chat,
    )


def _shortened(writer: PromptWriter, draft: Draft, *, limit: int) -> Draft:
    """Keeps the first and the last half of the tokens of a text that is too long."""
    count = writer.count(draft)
    if count <= limit:
        return draft
    ids = writer.tokenizer.encode(draft.context + draft.question, add_special_tokens=False)
    half = (limit - (count - len(ids))) // 2
    while half > 0:
        first, last = (writer.tokenizer.decode(part) for part in (ids[:half], ids[-half:]))
        if not last.endswith(draft.question):
            break
        cut = replace(draft, context=first + last.removesuffix(draft.question))
        excess = writer.count(cut) - limit
        if excess <= 0:
            return cut
        half -= max(excess // 2, 1)
    raise ConfigError(
        f"{limit} prompt tokens have no room for the question of a LongBench prompt: allow more"
    )


def _sample(
    writer: PromptWriter,
    draft: Draft,
    *,
    name: str,
    record: dict[str, Any],
    number: int,
    task: LongBenchTask,
) -> Sample:
    written = writer.write(draft)
    return Sample(
        task=name,
        prompt_ids=written.token_ids,
        answer_text=draft.answer,
        answer_ids=written.answer_ids,
        answers=tuple(str(answer) for answer in record["answers"]),
        question_span=written.question_span,
        needle_spans=(),
        depth=None,
        length=len(written.token_ids),
        seed=number,
        max_new_tokens=task.max_new_tokens,
        metric=task.metric,
        classes=tuple(record.get("all_classes") or ()),
        first_line=task.first_line,
    )
