"""LongBench files: prompts, the cut in the middle, references, and files that are not theirs."""

import json
from pathlib import Path
from typing import Any

import pytest

from loadtest.quality.tasks.longbench import PROMPTS_FILE, LongBenchFolder
from loadtest.quality.tasks.longbench_tasks import LONGBENCH_TASKS
from loadtest.quality.tasks.prompt import PromptWriter
from loadtest.quality.tasks.sample import Protocol, Sample
from shared.errors import ConfigError

RECORD: dict[str, Any] = {
    "input": "Who came?",
    "context": "Ann came. Bob {stayed}.",
    "answers": ["Ann", "Ann Lee"],
    "all_classes": None,
}
ROOMY = 900


def write(folder: Path, task: str, *records: dict[str, Any]) -> Path:
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / f"{task}.jsonl").write_text(lines + "\n", encoding="utf-8")
    return folder


def text_of(writer: PromptWriter, sample: Sample) -> str:
    return writer.tokenizer.decode(sample.prompt_ids, skip_special_tokens=False)


def test_there_are_sixteen() -> None:
    assert len(LONGBENCH_TASKS) == 16
    without_chat = [name for name, task in LONGBENCH_TASKS.items() if not task.chat]
    assert without_chat == ["trec", "triviaqa", "samsum", "lcc", "repobench-p"]
    assert [task.max_new_tokens for task in LONGBENCH_TASKS.values()] == [
        128, 128, 64, 32, 32, 32, 512, 512, 512, 64, 32, 128, 32, 32, 64, 64,
    ]  # fmt: skip
    assert all(task.prompt.count("{context}") == 1 for task in LONGBENCH_TASKS.values())


@pytest.mark.parametrize("task", LONGBENCH_TASKS)
def test_every_task(tmp_path: Path, writer: PromptWriter, task: str) -> None:
    folder = LongBenchFolder.open(write(tmp_path, task, RECORD, RECORD))
    samples = list(folder.samples(writer, max_prompt_tokens=ROOMY))
    assert [sample.seed for sample in samples] == [0, 1]
    sample = samples[0]
    text = text_of(writer, sample)
    assert RECORD["context"] in text
    assert ("<|im_start|>user" in text) == LONGBENCH_TASKS[task].chat
    assert sample.answers == ("Ann", "Ann Lee")
    assert sample.metric == LONGBENCH_TASKS[task].metric
    before, question = sample.split(Protocol.QUESTION_EXCLUDED)
    assert writer.tokenizer.decode(before).endswith(RECORD["context"])
    if "{input}" in LONGBENCH_TASKS[task].prompt:
        assert "Who came?" in writer.tokenizer.decode(question)


def test_long_texts_lose_their_middle(tmp_path: Path, writer: PromptWriter) -> None:
    record = RECORD | {"context": "begin " + "x" * 3000 + " end"}
    folder = LongBenchFolder.open(write(tmp_path, "hotpotqa", record))
    (sample,) = folder.samples(writer, max_prompt_tokens=700)
    text = text_of(writer, sample)
    assert 690 < len(sample.prompt_ids) <= 700
    assert "begin x" in text
    assert "x end\n\nReply" in text
    before, question = sample.split(Protocol.QUESTION_EXCLUDED)
    assert writer.tokenizer.decode(before).endswith("x end")
    assert "Question: Who came?" in writer.tokenizer.decode(question)


@pytest.mark.parametrize("limit", [10, 200])
def test_no_room(tmp_path: Path, writer: PromptWriter, limit: int) -> None:
    folder = LongBenchFolder.open(write(tmp_path, "hotpotqa", RECORD))
    with pytest.raises(ConfigError, match=f"{limit} prompt tokens have no room"):
        list(folder.samples(writer, max_prompt_tokens=limit))


def test_their_prompts_are_used_where_they_lie(tmp_path: Path, writer: PromptWriter) -> None:
    folder = write(tmp_path, "lcc", RECORD)
    assert LongBenchFolder.open(folder).own_prompts
    prompts = dict.fromkeys(LONGBENCH_TASKS, "Their {context} for {input}")
    (folder / PROMPTS_FILE).write_text(json.dumps(prompts), encoding="utf-8")
    opened = LongBenchFolder.open(folder)
    assert not opened.own_prompts
    (sample,) = opened.samples(writer, max_prompt_tokens=ROOMY)
    assert text_of(writer, sample) == "Their Ann came. Bob {stayed}. for Who came?"
    del prompts["trec"]
    (folder / PROMPTS_FILE).write_text(json.dumps(prompts), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"has no prompt with \{context\} for trec"):
        LongBenchFolder.open(folder)


def test_choice_and_order_of_tasks(tmp_path: Path, writer: PromptWriter) -> None:
    for task in ("trec", "qasper", "lcc"):
        write(tmp_path, task, RECORD, RECORD, RECORD)
    assert list(LongBenchFolder.open(tmp_path).tasks) == ["qasper", "trec", "lcc"]
    chosen = LongBenchFolder.open(tmp_path, tasks=["lcc", "qasper"])
    samples = chosen.samples(writer, max_prompt_tokens=ROOMY, per_task=2)
    assert [sample.task for sample in samples] == ["qasper", "qasper", "lcc", "lcc"]


def test_class_names(tmp_path: Path, writer: PromptWriter) -> None:
    record = RECORD | {"all_classes": ["Ann", "Bob"], "answers": ["Bob"]}
    (sample,) = LongBenchFolder.open(write(tmp_path, "trec", record)).samples(
        writer, max_prompt_tokens=ROOMY
    )
    assert sample.classes == ("Ann", "Bob")
    assert sample.first_line


def test_wrong_folders(tmp_path: Path, writer: PromptWriter) -> None:
    with pytest.raises(ConfigError, match=r"has no narrativeqa\.jsonl"):
        LongBenchFolder.open(tmp_path)
    write(tmp_path, "trec", RECORD)
    with pytest.raises(ConfigError, match=r"has no lcc\.jsonl"):
        LongBenchFolder.open(tmp_path, tasks=["trec", "lcc"])
    with pytest.raises(ConfigError, match="no LongBench task 'dureader'"):
        LongBenchFolder.open(tmp_path, tasks=["dureader"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1 of .*trec.jsonl is not JSON"),
        ("[]", "line 1 of .*trec.jsonl holds no JSON object"),
        ('{"context": "c", "answers": ["a"]}', "has no input"),
        ('{"context": "c", "input": "i", "answers": []}', "has no answers"),
    ],
)
def test_wrong_lines(tmp_path: Path, writer: PromptWriter, line: str, message: str) -> None:
    (tmp_path / "trec.jsonl").write_text(line, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        list(LongBenchFolder.open(tmp_path).samples(writer, max_prompt_tokens=ROOMY))
