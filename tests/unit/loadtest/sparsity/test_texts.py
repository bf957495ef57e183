import pytest

from loadtest.sparsity.texts import LONG_TEXTS, long_text, prose_window, repeats_window
from shared.errors import ConfigError


@pytest.fixture
def tokenizer(setup):
    return setup.tokenizer


def scored_text(tokenizer, text):
    """The answers of a text, each run of scored tokens decoded."""
    runs: list[list[int]] = []
    last = False
    for token, scored in zip(text.forced_ids[1:], text.scored, strict=True):
        if scored:
            runs = [*runs[:-1], [*runs[-1], token]] if last else [*runs, [token]]
        last = scored
    return [tokenizer.decode(run).strip() for run in runs]


@pytest.mark.parametrize("name", LONG_TEXTS)
def test_long_texts_fill_their_room_and_repeat_with_their_seed(tokenizer, name):
    text = long_text(tokenizer, name=name, context=64, steps=500, seed=3)
    assert len(text.prompt_ids) == 64
    assert 400 < text.steps <= 500
    assert len(text.scored) == text.steps
    assert text == long_text(tokenizer, name=name, context=64, steps=500, seed=3)
    assert text != long_text(tokenizer, name=name, context=64, steps=500, seed=4)


def test_a_ledger_asks_for_every_number_that_it_holds(tokenizer):
    text = long_text(tokenizer, name="ledger", context=8, steps=500, seed=0)
    entries, lookups = tokenizer.decode([*text.prompt_ids, *text.forced_ids]).split(
        "Numbers looked"
    )
    answers = scored_text(tokenizer, text)
    assert len(answers) == lookups.count("The number of") >= 3
    assert all(f" is {answer}." in entries for answer in answers)


def test_sums_add_up(tokenizer):
    text = long_text(tokenizer, name="sums", context=8, steps=600, seed=0)
    whole = tokenizer.decode([*text.prompt_ids, *text.forced_ids])
    payments = [line.split() for line in whole.splitlines() if " plus " in line]
    assert payments
    for words in payments:
        assert int(words[2]) + int(words[4]) == int(words[6])
    assert scored_text(tokenizer, text) == [
        word for words in payments for word in (words[2], words[6])
    ]


def test_a_copy_is_the_list(tokenizer):
    text = long_text(tokenizer, name="copy", context=8, steps=500, seed=0)
    (copied,) = scored_text(tokenizer, text)
    assert f"A list to be copied: {copied}." in tokenizer.decode(
        [*text.prompt_ids, *text.forced_ids]
    )


def test_windows_of_prose_differ_and_count_in_full(tokenizer):
    first, second = (prose_window(tokenizer, context=100, steps=20, seed=seed) for seed in (0, 1))
    assert first.prompt_ids != second.prompt_ids
    assert (len(first.prompt_ids), first.steps, sum(first.scored)) == (100, 20, 20)


def test_repeats_are_left_out_of_prose_alone(tokenizer):
    sizes = {"context": 60_000, "steps": 100, "seed": 0}
    prose, repeats = prose_window(tokenizer, **sizes), repeats_window(tokenizer, **sizes)
    held = [tokenizer.decode(text.prompt_ids).split(". ") for text in (prose, repeats)]
    shares = [len(set(sentences)) / len(sentences) for sentences in held]
    assert shares[0] > 0.99
    assert shares[1] < 0.95


def test_texts_without_room_are_refused(tokenizer):
    with pytest.raises(ConfigError, match="steps"):
        long_text(tokenizer, name="copy", context=8, steps=20, seed=0)
    with pytest.raises(ConfigError, match="prose"):
        prose_window(tokenizer, context=10_000_000, steps=1, seed=0)
