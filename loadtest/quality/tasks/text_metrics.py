"""Comparing an output with one reference; every score lies between 0 and 1."""

import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NUMBER = re.compile(r"\d+")
_PARAGRAPH = re.compile(r"Paragraph (\d+)")
_COMMENT_MARKS = ("`", "#", "//")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def contains(output: str, reference: str) -> float:
    """1 when the reference stands in the output, capitals or not."""
    return float(reference.lower() in output.lower())


def token_f1(output: str, reference: str) -> float:
    """Harmonic mean of precision and recall over words, without case, punctuation and articles."""
    found, wanted = _plain_words(output), _plain_words(reference)
    shared = sum((Counter(found) & Counter(wanted)).values())
    return 2 * shared / (len(found) + len(wanted)) if shared else 0.0


def rouge_l(output: str, reference: str) -> float:
    """ROUGE-L F of two texts by the union rule for several sentences, over different words.

    For each sentence of the reference, the words of its longest common subsequences with the
    output's sentences are united; a word counts once in a whole text. A full stop ends a sentence.
    """
    found, wanted = _sentences(output), _sentences(reference)
    num_found = len({word for sentence in found for word in sentence})
    num_wanted = len({word for sentence in wanted for word in sentence})
    common: set[str] = set()
    for sentence in wanted:
        for other in found:
            common.update(longest_common_subsequence(sentence, other))
    return 2 * len(common) / (num_found + num_wanted) if common else 0.0


def class_name(output: str, reference: str, *, classes: Sequence[str]) -> float:
    """One over the number of class names in the output, when the right one is among them.

    Class names inside the right one do not count against it.
    """
    named = [name for name in classes if name in output]
    rivals = [name for name in named if name == reference or name not in reference]
    return 1 / len(rivals) if reference in rivals else 0.0


def count(output: str, reference: str) -> float:
    """Share of the numbers in the output that equal the reference."""
    numbers = _NUMBER.findall(output)
    return numbers.count(reference) / len(numbers) if numbers else 0.0


def paragraph_number(output: str, reference: str) -> float:
    """Share of the numbers in the output that equal the number of the reference's paragraph."""
    wanted = _PARAGRAPH.search(reference)
    return count(output, wanted.group(1)) if wanted else 0.0


def code_similarity(output: str, reference: str) -> float:
    """Likeness, in whole hundredths, of the output's first line of code and the reference."""
    lines = output.lstrip("\n").split("\n")
    code = next((line for line in lines if not any(mark in line for mark in _COMMENT_MARKS)), "")
    if not code or not reference:
        return 0.0
    return round(100 * SequenceMatcher(None, code, reference).ratio()) / 100


def longest_common_subsequence(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """The words of one longest common subsequence, in order."""
    lengths = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, word in enumerate(first, start=1):
        for j, other in enumerate(second, start=1):
            lengths[i][j] = (
                lengths[i - 1][j - 1] + 1
                if word == other
                else max(lengths[i - 1][j], lengths[i][j - 1])
            )
    return list(_walk_back(lengths, first, second))[::-1]


def _walk_back(
    lengths: list[list[int]], first: Sequence[str], second: Sequence[str]
) -> Iterator[str]:
    i, j = len(first), len(second)
    while i and j:
        if first[i - 1] == second[j - 1]:
            yield first[i - 1]
            i, j = i - 1, j - 1
        elif lengths[i - 1][j] > lengths[i][j - 1]:
            i -= 1
        else:
            j -= 1


def _plain_words(text: str) -> list[str]:
    return _ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def _sentences(text: str) -> list[list[str]]:
    # White space between full stops counts as an empty word, as in the package LongBench uses.
    return [part.split() or [""] for part in text.split(".") if part]
