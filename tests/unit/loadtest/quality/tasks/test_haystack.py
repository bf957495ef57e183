"""Needles stand where they should, in prose that reads like prose."""

from random import Random

import pytest

from loadtest.quality.tasks.haystack import (
    NOISE,
    Needle,
    hide,
    prose,
    prose_sentences,
    prose_start,
    prose_words,
)


def test_prose_is_plain_and_long_enough() -> None:
    sentences = prose_sentences()
    assert sum(map(len, sentences)) > 100_000
    assert all(len(text.split()) >= 6 and text[-1] in ".!?" for text in sentences)
    assert all("\n" not in text and ">>>" not in text for text in sentences)


def test_prose_goes_round() -> None:
    total = len(prose_sentences())
    assert prose(3, start=total - 1) == [
        prose_sentences()[-1], prose_sentences()[0], prose_sentences()[1],
    ]  # fmt: skip
    assert 0 <= prose_start(Random(1)) < total


def test_words_are_plain() -> None:
    words = prose_words()
    assert len(words) > 1000
    assert list(words) == sorted(set(words))
    assert all(word.isalpha() and word.islower() for word in words)


@pytest.mark.parametrize("depth", [0.0, 0.11, 0.5, 0.93, 1.0])
@pytest.mark.parametrize("units", [[NOISE] * 40, prose(60, start=5)], ids=["noise", "prose"])
def test_depth(units: list[str], depth: float) -> None:
    text, (span,) = hide(units, [Needle("The needle.", depth)], joiner=" ")
    assert text[span.start : span.stop] == "The needle."
    rest = text[: span.start] + text[span.stop :]
    assert rest.split() == " ".join(units).split()
    longest = max(map(len, units))
    assert abs(span.start - depth * (len(text) - len("The needle."))) <= longest / 2 + 3


def test_several_needles_keep_their_order() -> None:
    needles = [Needle("late", 0.9), Needle("early", 0.2), Needle("later", 0.9), Needle("end", 1.0)]
    text, spans = hide(["aaaa"] * 10, needles, joiner="\n")
    assert [text[a:b] for a, b in spans] == ["late", "early", "later", "end"]
    assert text.split("\n")[-1] == "end"
    assert [line for line in text.split("\n") if line != "aaaa"] == [
        "early", "late", "later", "end",
    ]  # fmt: skip


def test_needles_between_two_units_choose_the_nearer_boundary() -> None:
    text, _ = hide(["x" * 9, "y" * 29], [Needle("n", 0.3)], joiner=" ")
    assert text.split()[1] == "n"
    text, _ = hide(["x" * 9, "y" * 29], [Needle("n", 0.9)], joiner=" ")
    assert text.split()[2] == "n"
