"""What Δ-layers are calibrated on: prose that goes on, long prompts with questions, own prompts."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from random import Random

from loadtest.quality.tasks.haystack import prose, prose_start
from loadtest.quality.tasks.prompt import PromptWriter
from loadtest.quality.tasks.ruler import ruler_sample
from loadtest.quality.tasks.sample import Sample
from shared.tokenizer.tokenizer import Tokenizer

DELTA_LENGTHS = (1536, 2048, 3072)
"""Prompt lengths unless asked otherwise."""
ANSWER_TOKENS = 48
"""Tokens of an answer that are decoded at most."""
PROSE_TOKENS = 192
"""Tokens of the continuation of a prose prompt."""
LONGEST_TAIL = max(ANSWER_TOKENS, PROSE_TOKENS)
"""Tokens that follow a prompt at most."""
_QUESTIONS = ("multiquery", "vt", "multivalue", "cwe", "multikey_2", "fwe")
"""Tasks whose answers are several words long, so that there are steps to record."""
_TOKENS_OF_A_SENTENCE = 12
"""Fewer than any prose has on average, so that enough is tokenised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSample:
    """A prompt, and how it goes on."""

    name: str
    """Task or source."""
    prompt_ids: tuple[int, ...]
    """Tokens that are read at once."""
    tail_ids: tuple[int, ...]
    """Tokens after it; empty: the model's own answer, greedily."""


def generated_delta_samples(
    writer: PromptWriter, *, count: int, lengths: Sequence[int], seed: int
) -> list[DeltaSample]:
    """`count` samples, prose and questions in turn; the same for the same seed and tokenizer.

    Raises:
        ConfigError: a length has no room for a question.
    """
    sizes, questions = cycle(lengths), cycle(_QUESTIONS)

    def endless(size: int, number: int) -> DeltaSample:
        if number % 2 == 0:
            return _prose(writer.tokenizer, length=size, seed=seed + number)
        task = next(questions)
        asked = ruler_sample(writer, task=task, length=size, seed=seed + number)
        return DeltaSample(name=task, prompt_ids=asked.prompt_ids, tail_ids=())

    # A length serves a prose and a question sample before the next one's turn.
    return [
        endless(size, number)
        for number, size in enumerate(islice((s for size in sizes for s in (size, size)), count))
    ]


def own_delta_samples(samples: Sequence[Sample]) -> list[DeltaSample]:
    """A user's prompts; the model answers them."""
    return [
        DeltaSample(name=sample.task, prompt_ids=sample.prompt_ids, tail_ids=())
        for sample in samples
    ]


def _prose(tokenizer: Tokenizer, *, length: int, seed: int) -> DeltaSample:
    """Plain text, cut into a prompt and what really follows."""
    wanted = length + PROSE_TOKENS
    start = prose_start(Random(f"delta/{seed}"))
    sentences = wanted // _TOKENS_OF_A_SENTENCE + 1
    ids: list[int] = []
    while len(ids) < wanted:
        ids = tokenizer.encode(" ".join(prose(sentences, start=start)), add_special_tokens=True)
        sentences *= 2
    return DeltaSample(
        name="prose", prompt_ids=tuple(ids[:length]), tail_ids=tuple(ids[length:wanted])
    )
