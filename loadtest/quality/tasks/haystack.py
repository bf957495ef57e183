"""What needles are hidden in: one line of noise repeated, or the prose of Python's own help."""

import functools
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pydoc_data.topics import topics
from random import Random

from loadtest.quality.tasks.sample import Span

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."

_FEWEST_WORDS = 6
_SENTENCE_END = re.compile(r"(?<=[a-z\")][.!?])\s+(?=[A-Z\"])")
_PLAIN_WORD = re.compile(r"\b[a-z]{4,12}\b")


@dataclass(frozen=True)
class Needle:
    """A sentence to hide."""

    text: str
    depth: float
    """Where: 0 before the first unit of the haystack, 1 after the last."""


@functools.cache
def prose_sentences() -> tuple[str, ...]:
    """The sentences of the help topics in alphabetic order, without code, tables and headings.

    They belong to the running Python version, as its help does.
    """
    found: list[str] = []
    for _, topic in sorted(topics.items()):
        for paragraph in re.split(r"\n\s*\n", topic):
            if not _is_code(paragraph):
                found += _SENTENCE_END.split(" ".join(paragraph.split()))
    return tuple(sentence for sentence in found if _is_sentence(sentence))


@functools.cache
def prose_words() -> tuple[str, ...]:
    """The plain words of the prose, sorted."""
    found = {word for text in prose_sentences() for word in _PLAIN_WORD.findall(text)}
    return tuple(sorted(found))


def prose(count: int, *, start: int = 0) -> list[str]:
    """`count` consecutive sentences of prose, from sentence `start` on, over and over."""
    sentences = prose_sentences()
    return [sentences[(start + i) % len(sentences)] for i in range(count)]


def prose_start(rng: Random) -> int:
    """A sentence to start from."""
    return rng.randrange(len(prose_sentences()))


def hide(units: Sequence[str], needles: Sequence[Needle], *, joiner: str) -> tuple[str, list[Span]]:
    """The haystack's text with needles between its units, and the characters of each needle.

    A needle goes to the boundary of units nearest to its depth, measured in characters. Needles at
    one boundary stand in the order given.

    Args:
        units: lines or sentences.
        needles: what to hide.
        joiner: what stands between any two.
    """
    ends = [0, *accumulate(len(unit) + len(joiner) for unit in units)]
    placed = sorted(
        (_nearest(ends, needle.depth * ends[-1]), order) for order, needle in enumerate(needles)
    )
    pieces: list[tuple[str, int | None]] = []
    taken = 0
    for boundary, order in placed:
        pieces += [(unit, None) for unit in units[taken:boundary]]
        pieces.append((needles[order].text, order))
        taken = boundary
    pieces += [(unit, None) for unit in units[taken:]]
    spans = [Span(0, 0)] * len(needles)
    at = 0
    for text, which in pieces:
        if which is not None:
            spans[which] = Span(at, at + len(text))
        at += len(text) + len(joiner)
    return joiner.join(text for text, _ in pieces), spans


def _nearest(ends: list[int], target: float) -> int:
    above = min(bisect_left(ends, target), len(ends) - 1)
    below = max(above - 1, 0)
    return below if target - ends[below] <= ends[above] - target else above


def _is_code(paragraph: str) -> bool:
    lines = paragraph.splitlines()
    return all(line.startswith("      ") for line in lines) or any(
        mark in paragraph
        for mark in (">>>", "::=", "+--", "|", "===", "***", "~~~", "---", "   def ")
    )


def _is_sentence(text: str) -> bool:
    words = text.split()
    letters = sum(char.isalpha() or char == " " for char in text)
    return (
        len(words) >= _FEWEST_WORDS
        and text[0].isupper()
        and text[-1] in ".!?"
        and letters > 0.85 * len(text)
    )
