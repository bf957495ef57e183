"""The needle grid: lengths, depths, determinism, one answer."""

from itertools import product

import pytest

from loadtest.quality.tasks.needle import (
    MIXTURE_LENGTHS,
    NEEDLE_TASKS,
    needle_grid,
    needle_mixture,
    needle_sample,
)
from loadtest.quality.tasks.prompt import PromptWriter
from loadtest.quality.tasks.sample import Protocol, Sample
from shared.errors import ConfigError

LONGEST_UNIT = 130
"""Tokens of the longest usual sentence; a prompt falls short of its length by less."""


def text_of(writer: PromptWriter, sample: Sample, start: int = 0, stop: int | None = None) -> str:
    return writer.tokenizer.decode(sample.prompt_ids[start:stop], skip_special_tokens=False)


@pytest.mark.parametrize(
    ("task", "length", "depth"), list(product(NEEDLE_TASKS, (1024, 2048), (0.0, 0.5, 1.0)))
)
def test_cells(real_writer: PromptWriter, task: str, length: int, depth: float) -> None:
    sample = needle_sample(real_writer, task=task, length=length, depth=depth, seed=3)
    assert length - LONGEST_UNIT < len(sample.prompt_ids) <= length
    (value,) = sample.answers
    (needle,) = sample.needle_spans
    hidden = text_of(real_writer, sample, *needle)
    assert value in hidden
    assert text_of(real_writer, sample).count(value) == 1
    assert hidden.count("special magic number") == 1
    context = sample.question_span.start
    at = (needle.start - 40) / (context - 40 - (needle.stop - needle.start))
    assert abs(at - depth) < 0.08
    assert sample.depth == depth
    assert real_writer.tokenizer.decode(sample.answer_ids) == sample.answer_text == f" {value}"
    assert text_of(real_writer, sample, sample.question_span.start).startswith("\n\nWhat is")
    assert sample.question_span.stop == len(sample.prompt_ids)


@pytest.mark.parametrize("task", NEEDLE_TASKS)
def test_keys(real_writer: PromptWriter, task: str) -> None:
    sample = needle_sample(real_writer, task=task, length=1024, depth=0.5, seed=0)
    keys = 4 if task.endswith("4keys") else 1
    assert text_of(real_writer, sample).count("One of the special magic numbers") == keys


def test_grid_is_the_product(writer: PromptWriter) -> None:
    samples = list(
        needle_grid(
            writer, tasks=["niah_noise_1key"], lengths=[900, 1500], depths=[0, 1], seeds=[0, 1]
        )
    )
    assert [(s.length, s.depth, s.seed) for s in samples] == list(
        product([900, 1500], [0, 1], [0, 1])
    )
    assert len({sample.prompt_ids for sample in samples}) == len(samples)
    assert samples == list(
        needle_grid(
            writer, tasks=["niah_noise_1key"], lengths=[900, 1500], depths=[0, 1], seeds=[0, 1]
        )
    )


def test_mixture_takes_turns_and_only_grows(writer: PromptWriter) -> None:
    lengths = (1100, 1500)
    few = list(needle_mixture(writer, count=9, lengths=lengths))
    more = list(needle_mixture(writer, count=16, lengths=lengths))
    assert more[:9] == few
    cells = [(sample.task, sample.length) for sample in more]
    assert cells == [*product(NEEDLE_TASKS, lengths)] * 2
    assert len({sample.prompt_ids for sample in more}) == 16
    assert len({sample.depth for sample in more}) > 8
    assert list(needle_mixture(writer, count=8, lengths=lengths, seed=1)) == more[8:]
    assert MIXTURE_LENGTHS[-1] < 8192


def test_protocols(writer: PromptWriter) -> None:
    sample = needle_sample(writer, task="niah_noise_1key", length=900, depth=0.5, seed=0)
    assert sample.split(Protocol.QUESTION_INCLUDED) == (sample.prompt_ids, ())
    context, question = sample.split(Protocol.QUESTION_EXCLUDED)
    assert context + question == sample.prompt_ids
    key = text_of(writer, sample).split("special magic number for ")[1].split(" ")[0]
    assert f"What is the special magic number for {key}" not in writer.tokenizer.decode(context)
    assert f"What is the special magic number for {key}" in writer.tokenizer.decode(question)


def test_models_without_a_chat_template(plain_writer: PromptWriter) -> None:
    sample = needle_sample(plain_writer, task="niah_prose_1key", length=900, depth=0.5, seed=0)
    text = text_of(plain_writer, sample)
    assert "<|im_start|>" not in text
    assert text.endswith("is:")


def test_refusals(writer: PromptWriter) -> None:
    with pytest.raises(ConfigError, match="no needle task 'nope': choose among niah_noise_1key"):
        needle_sample(writer, task="nope", length=900, depth=0.5, seed=0)
    with pytest.raises(ConfigError, match=r"depth of 1\.5 is outside"):
        needle_sample(writer, task="niah_noise_1key", length=900, depth=1.5, seed=0)
    with pytest.raises(ConfigError, match="no room"):
        needle_sample(writer, task="niah_noise_1key", length=100, depth=0.5, seed=0)
