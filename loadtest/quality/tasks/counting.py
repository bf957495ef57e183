"""Aggregation: which words of a list are the most common, and which coded words come most often."""

from collections.abc import Sequence
from random import Random

from loadtest.quality.tasks.haystack import prose_words
from loadtest.quality.tasks.prompt import Draft, PromptWriter, fit
from loadtest.quality.tasks.sample import Sample
from loadtest.quality.tasks.words import ADJECTIVES, NOUNS, coded_word, distinct, word_key

_NUM_COMMON = 10
_CWE_NEW_TOKENS = 120
_FWE_NEW_TOKENS = 50
_SHORT_LENGTH = 4096
_TOKENS_PER_CODED_WORD = 50
_ZETA_OF_2 = 1.6449340668482264
_DOTS = "..."

_CWE_INSTRUCTION = (
    "Below is a numbered list of words. Some of them come more often than the others. Remember "
    "those.\n"
)
_CWE_QUESTION = f"\nWhat are the {_NUM_COMMON} most common words in the list above?"
_CWE_PREFIX = f"The {_NUM_COMMON} most common words in the list are:"


def common_words_sample(writer: PromptWriter, *, length: int, seed: int) -> Sample:
    """RULER's `cwe`: ten words 30 times each, others 3 times (6 and 1 below 4,096 tokens).

    One solved example of a short list comes first.

    Args:
        writer: writes for the model.
        length: tokens of the prompt and of the answer together.
        seed: number of the sample.

    Raises:
        ConfigError: the length has no room for the list.
    """
    rng = Random(f"cwe/{length}/{seed}")
    words = sorted({*prose_words(), *ADJECTIVES, *NOUNS})
    rng.shuffle(words)
    short = length < _SHORT_LENGTH
    example = _example(words[:40], short=short, seed=seed)
    common, others = words[40:50], words[50:]
    repeats = (6, 1) if short else (30, 3)

    def draft(size: int) -> Draft:
        rest = _at_least(others, size, seed=seed)
        listed = _numbered(common, rest, repeats=repeats, seed=seed)
        return Draft(
            context=example + _CWE_INSTRUCTION + listed,
            question=_CWE_QUESTION,
            answer=" " + ", ".join(common),
            answer_prefix=_CWE_PREFIX,
        )

    limit = length - _CWE_NEW_TOKENS
    chosen = fit(writer, draft, limit=limit, guess=limit // (6 * repeats[1]) - 90)
    return _sample(writer, chosen, task="cwe", answers=common, length=length, seed=seed)


def frequent_words_sample(writer: PromptWriter, *, length: int, seed: int) -> Sample:
    """RULER's `fwe`: coded words whose counts fall with the square of their rank.

    The first rank is dots, to be ignored; ranks two to four are the answer.

    Args:
        writer: writes for the model.
        length: tokens of the prompt and of the answer together.
        seed: number of the sample.

    Raises:
        ConfigError: the length has no room for the text.
    """
    rng = Random(f"fwe/{length}/{seed}")
    vocabulary = [_DOTS, *distinct(coded_word, max(length // _TOKENS_PER_CODED_WORD, 4), rng=rng)]
    answers = vocabulary[1:4]

    def draft(size: int) -> Draft:
        return Draft(
            context=(
                "Read the coded text below and count how often each coded word comes in it.\n\n"
                + " ".join(_coded_text(vocabulary, size, seed=seed))
            ),
            question=(
                "\n\nIgnore the dots. Which three coded words come most often in the text above?"
            ),
            answer=" " + ", ".join(answers),
            answer_prefix="The three coded words that come most often are:",
        )

    limit = length - _FWE_NEW_TOKENS
    chosen = fit(writer, draft, limit=limit, guess=max(limit // 4, 32))
    return _sample(writer, chosen, task="fwe", answers=answers, length=length, seed=seed)


def _sample(
    writer: PromptWriter, draft: Draft, *, task: str, answers: Sequence[str], length: int, seed: int
) -> Sample:
    written = writer.write(draft)
    return Sample(
        task=task,
        prompt_ids=written.token_ids,
        answer_text=draft.answer,
        answer_ids=written.answer_ids,
        answers=tuple(answers),
        question_span=written.question_span,
        needle_spans=(),
        depth=None,
        length=length,
        seed=seed,
        max_new_tokens=_CWE_NEW_TOKENS if task == "cwe" else _FWE_NEW_TOKENS,
    )


def _example(words: Sequence[str], *, short: bool, seed: int) -> str:
    used = words[:20] if short else words
    repeats = (3, 1) if short else (10, 3)
    listed = _numbered(used[:_NUM_COMMON], used[_NUM_COMMON:], repeats=repeats, seed=seed)
    solution = ", ".join(used[:_NUM_COMMON])
    return f"{_CWE_INSTRUCTION}{listed}{_CWE_QUESTION}\n{_CWE_PREFIX} {solution}\n\n"


def _numbered(
    common: Sequence[str], others: Sequence[str], *, repeats: tuple[int, int], seed: int
) -> str:
    entries = [*common] * repeats[0] + [*others] * repeats[1]
    Random(f"order/{seed}").shuffle(entries)
    return " ".join(f"{place}. {word}" for place, word in enumerate(entries, start=1))


def _at_least(words: Sequence[str], count: int, *, seed: int) -> list[str]:
    """The first `count` words; longer lists go on with pairs of words."""
    missing = max(count - len(words), 0)
    return [*words[:count], *distinct(word_key, missing, rng=Random(f"more/{seed}"))]


def _coded_text(vocabulary: Sequence[str], size: int, *, seed: int) -> list[str]:
    """`size` words at most, shuffled; each rank at least as often as the next one, down to zero."""
    text: list[str] = []
    for rank, word in enumerate(vocabulary, start=1):
        text += [word] * round(size / (_ZETA_OF_2 * rank * rank))
    Random(f"order/{seed}").shuffle(text)
    return text
