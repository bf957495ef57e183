"""RULER's tasks: what each hides and asks for, and how long it gets."""

import re
from collections import Counter

import pytest

from loadtest.quality.tasks.prompt import PromptWriter
from loadtest.quality.tasks.ruler import RULER_TASKS, ruler_sample, ruler_samples
from loadtest.quality.tasks.sample import Sample
from loadtest.quality.tasks.scoring import score_output
from shared.errors import ConfigError

NUM_ANSWERS = {"multivalue": 4, "multiquery": 4, "vt": 5, "cwe": 10, "fwe": 3}


def text_of(writer: PromptWriter, sample: Sample) -> str:
    return writer.tokenizer.decode(sample.prompt_ids, skip_special_tokens=False)


def context_of(writer: PromptWriter, sample: Sample) -> str:
    return writer.tokenizer.decode(sample.prompt_ids[: sample.question_span.start])


def test_there_are_eleven() -> None:
    assert list(RULER_TASKS) == [
        "single_1", "single_2", "single_3", "multikey_1", "multikey_2", "multikey_3",
        "multivalue", "multiquery", "vt", "cwe", "fwe",
    ]  # fmt: skip


@pytest.mark.parametrize("length", [1024, 2048])
@pytest.mark.parametrize("task", RULER_TASKS)
def test_every_task(real_writer: PromptWriter, task: str, length: int) -> None:
    sample = ruler_sample(real_writer, task=task, length=length, seed=1)
    total = len(sample.prompt_ids) + sample.max_new_tokens
    assert length - 150 < total <= length
    assert sample.length == length
    assert len(sample.answers) == NUM_ANSWERS.get(task, 1)
    context = context_of(real_writer, sample)
    assert all(answer in context for answer in sample.answers)
    assert len(sample.answer_ids) <= sample.max_new_tokens
    assert score_output(sample, sample.answer_text) == 1.0
    assert score_output(sample, "nothing of that") == 0.0
    assert sample == ruler_sample(real_writer, task=task, length=length, seed=1)
    assert (
        sample.prompt_ids != ruler_sample(real_writer, task=task, length=length, seed=2).prompt_ids
    )


@pytest.mark.parametrize("task", [name for name in RULER_TASKS if name not in ("cwe", "fwe")])
def test_needle_spans_hold_the_answers(real_writer: PromptWriter, task: str) -> None:
    sample = ruler_sample(real_writer, task=task, length=1536, seed=0)
    assert len(sample.needle_spans) == len(sample.answers)
    for span, answer in zip(sample.needle_spans, sample.answers, strict=True):
        assert answer in real_writer.tokenizer.decode(sample.prompt_ids[span.start : span.stop])


def test_distractors(real_writer: PromptWriter) -> None:
    lines = {
        task: context_of(real_writer, ruler_sample(real_writer, task=task, length=2048, seed=0))
        for task in ("single_3", "multikey_1", "multikey_2", "multikey_3")
    }
    assert lines["single_3"].count("One of the special magic uuids") == 1
    assert lines["multikey_1"].count("One of the special magic numbers") == 4
    keys = re.findall(r"magic numbers for (\S+) is", lines["multikey_2"])
    assert len(keys) > 60
    assert len(set(keys)) == len(keys)
    assert len(re.findall(r"magic uuids for \S{36} is: \S{36}\.", lines["multikey_3"])) > 15


def test_chain_is_in_order(real_writer: PromptWriter) -> None:
    sample = ruler_sample(real_writer, task="vt", length=1024, seed=5)
    found = re.findall(r"VAR (\w{5}) = (?:VAR )?(\w{5})", context_of(real_writer, sample))
    assert [name for name, _ in found] == list(sample.answers)
    value = found[0][1]
    assert value.isdigit()
    assert [source for _, source in found[1:]] == list(sample.answers[:-1])
    assert f"have the value {value}" in text_of(real_writer, sample)


@pytest.mark.parametrize(("length", "often", "seldom"), [(1536, 6, 1), (4352, 30, 3)])
def test_common_words(real_writer: PromptWriter, length: int, often: int, seldom: int) -> None:
    sample = ruler_sample(real_writer, task="cwe", length=length, seed=0)
    example, listed = context_of(real_writer, sample).rsplit("\nBelow is a numbered list", 1)
    counts = Counter(re.findall(r"\d+\. ([\w-]+)", listed))
    common = dict(counts.most_common(10))
    assert set(common) == set(sample.answers)
    assert set(common.values()) == {often}
    assert set(counts.values()) == {often, seldom}
    shown = Counter(re.findall(r"\d+\. ([\w-]+)", example))
    solution = example.rstrip().rsplit(": ", 1)[1].split(", ")
    assert {word for word, _ in shown.most_common(10)} == set(solution)


def test_coded_words(real_writer: PromptWriter) -> None:
    sample = ruler_sample(real_writer, task="fwe", length=1536, seed=0)
    coded = context_of(real_writer, sample).split("\n\n")[1].split()
    counts = Counter(coded).most_common(5)
    assert [word for word, _ in counts[:4]] == ["...", *sample.answers]
    assert counts[0][1] / len(coded) == pytest.approx(0.61, abs=0.04)
    assert counts[3][1] > counts[4][1]


def test_product_and_refusals(real_writer: PromptWriter) -> None:
    made = ruler_samples(real_writer, tasks=["vt", "fwe"], lengths=[900, 1000], seeds=[0, 1])
    assert [(s.task, s.length, s.seed) for s in made] == [
        (task, length, seed) for task in ("vt", "fwe") for length in (900, 1000) for seed in (0, 1)
    ]
    with pytest.raises(ConfigError, match="no RULER task 'qa_1': choose among single_1"):
        ruler_sample(real_writer, task="qa_1", length=1024, seed=0)
    with pytest.raises(ConfigError, match="no room"):
        ruler_sample(real_writer, task="single_1", length=200, seed=0)
