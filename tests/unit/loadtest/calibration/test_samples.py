"""Which prompts a calibration measures on, and what a bad file is told."""

import json
from pathlib import Path

import pytest

from loadtest.calibration.samples import fitting_lengths, generated_samples, read_samples
from loadtest.quality.tasks.needle import LONG_VALUE_TASKS, NEEDLE_TASKS
from loadtest.quality.tasks.prompt import PromptWriter
from shared.errors import ConfigError
from shared.tokenizer.tokenizer import Tokenizer

ENTRY = {
    "prompt": "The door code is 4711. Birds sing. What is the code?",
    "needle": "The door code is 4711.",
    "answer": "4711",
}


@pytest.fixture(scope="module")
def writer(tiny_model_dir: Path) -> PromptWriter:
    return PromptWriter(Tokenizer.from_folder(tiny_model_dir))


def write(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_lengths_fit_the_context() -> None:
    assert fitting_lengths(8192) == (1024, 2048, 4096, 7168)
    assert fitting_lengths(4096) == (1024, 2048)
    assert fitting_lengths(1024) == (960,)


def test_a_third_of_the_generated_prompts_hide_a_value_of_many_tokens(writer: PromptWriter) -> None:
    drawn = generated_samples(writer, count=12, lengths=(900, 1500), seed=0)
    tasks = [sample.task for sample in drawn]
    assert set(tasks) == {*NEEDLE_TASKS, *LONG_VALUE_TASKS}
    assert sum(task in LONG_VALUE_TASKS for task in tasks) == 4
    for sample in drawn:
        assert len(sample.answer_ids) <= sample.max_new_tokens


def test_generated_prompts_depend_on_the_seed_alone(writer: PromptWriter) -> None:
    first = generated_samples(writer, count=3, lengths=(900,), seed=1)
    assert generated_samples(writer, count=3, lengths=(900,), seed=1) == first
    assert generated_samples(writer, count=3, lengths=(900,), seed=2) != first
    assert all(sample.needle_spans for sample in first)


def test_prompts_of_a_user(writer: PromptWriter, tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps(ENTRY), "", json.dumps({"prompt": "Hello there"}))
    known, unknown = read_samples(writer, path)
    decode = writer.tokenizer.decode
    (span,) = known.needle_spans
    assert ENTRY["needle"] in decode(known.prompt_ids[span.start : span.stop])
    assert decode(known.answer_ids) == "4711"
    assert ENTRY["prompt"] in decode(known.prompt_ids)
    assert (unknown.needle_spans, unknown.answer_ids, unknown.answers) == ((), (), ())
    assert [known.seed, unknown.seed] == [0, 2]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("{", "line 1 is no JSON"),
        ("[]", "an entry is an object"),
        ('{"answer": "x"}', "an entry is an object"),
        ('{"prompt": ""}', "an entry is an object"),
        ('{"prompt": "a", "id": "1"}', "an entry is an object"),
        ('{"prompt": "a", "needle": "b"}', "not in the prompt word for word"),
    ],
)
def test_bad_lines_are_explained(
    writer: PromptWriter, tmp_path: Path, line: str, text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        read_samples(writer, write(tmp_path, line))


def test_a_missing_file_is_explained(writer: PromptWriter, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_samples(writer, tmp_path / "none.jsonl")
