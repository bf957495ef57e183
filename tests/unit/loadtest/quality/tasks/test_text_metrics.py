"""Metrics against values worked out by hand."""

import pytest

from loadtest.quality.tasks.text_metrics import (
    class_name,
    code_similarity,
    contains,
    count,
    longest_common_subsequence,
    paragraph_number,
    rouge_l,
    token_f1,
)


def test_contains_ignores_capitals() -> None:
    assert contains("It is ABC, I think", "abc") == 1.0
    assert contains("It is AB", "abc") == 0.0


@pytest.mark.parametrize(
    ("output", "reference", "value"),
    [
        ("The cat sat.", "a cat sat", 1.0),
        ("cat", "the black cat", 2 * 1 * 0.5 / 1.5),
        ("cat cat dog", "cat bird", 2 * (1 / 3) * (1 / 2) / (1 / 3 + 1 / 2)),
        ("nothing", "cat", 0.0),
        ("", "cat", 0.0),
        ("the", "a", 0.0),
    ],
)
def test_token_f1(output: str, reference: str, value: float) -> None:
    assert token_f1(output, reference) == pytest.approx(value)


@pytest.mark.parametrize(
    ("output", "reference", "value"),
    [
        ("the cat sat", "the cat sat", 1.0),
        ("police kill the gunman", "police killed the gunman", 0.75),
        ("the gunman kill police", "police killed the gunman", 0.5),
        # One reference sentence, two of the output: "w1 w2" and "w1 w3 w5" unite to four of five;
        # the output has nine different words.
        ("w1 w2 w6 w7 w8.w1 w3 w8 w9 w5", "w1 w2 w3 w4 w5", 2 * 4 / (8 + 5)),
        # A word counts once, however often it comes.
        ("a a a a", "a b", 2 * 1 / (1 + 2)),
        ("", "cat", 0.0),
        ("dog", "cat", 0.0),
        ("one two.", "one two. ", 2 * 2 / (2 + 3)),
    ],
)
def test_rouge_l(output: str, reference: str, value: float) -> None:
    assert rouge_l(output, reference) == pytest.approx(value)


def test_longest_common_subsequence() -> None:
    found = longest_common_subsequence(list("abcbdab"), list("bdcaba"))
    assert len(found) == 4
    assert found in [list("bcba"), list("bdab"), list("bcab")]
    assert longest_common_subsequence([], ["a"]) == []


@pytest.mark.parametrize(
    ("output", "reference", "value"),
    [
        ("Type: City", "City", 1.0),
        ("Other city or City", "City", 0.5),
        ("City", "Other city", 0.0),
        # "City" is inside the right name and does not count against it.
        ("Capital City", "Capital City", 1.0),
        ("Other city", "Capital City", 0.0),
    ],
)
def test_class_name(output: str, reference: str, value: float) -> None:
    classes = ("City", "Other city", "Capital City")
    assert class_name(output, reference, classes=classes) == value


def test_count() -> None:
    assert count("There are 7, or 8, or 7", "7") == pytest.approx(2 / 3)
    assert count("There are 17", "7") == 0.0
    assert count("many", "7") == 0.0


def test_paragraph_number() -> None:
    assert paragraph_number("Paragraph 3", "Paragraph 3") == 1.0
    assert paragraph_number("3 or 4", "Paragraph 4") == 0.5
    assert paragraph_number("3", "none") == 0.0


@pytest.mark.parametrize(
    ("output", "reference", "value"),
    [
        ("\nreturn x\nmore", "return x", 1.0),
        ("# comment\n// other\n```python\nabcd", "abxy", 0.5),
        ("abc", "abcde", 0.75),
        ("# only", "x", 0.0),
        ("", "x", 0.0),
        ("x", "", 0.0),
    ],
)
def test_code_similarity(output: str, reference: str, value: float) -> None:
    assert code_similarity(output, reference) == pytest.approx(value)
