"""Texts to be continued word by word: real prose, and long records in which early entries matter.

A model too small to solve such a task can still be asked how much likelier the true continuation
becomes by what it has read: only the tokens that answer count.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType

from loadtest.quality.tasks.haystack import prose_sentences
from loadtest.quality.tasks.words import distinct, number, word_key
from shared.errors import ConfigError
from shared.tokenizer.tokenizer import Tokenizer

PROSE, REPEATS = "prose", "repeats"
_WINDOW_STRIDE = 0.137
"""Share of the prose between the beginnings of two windows: neighbours barely overlap."""
_ACCOUNTS = 24
"""Accounts of long running sums: the last balance of one lies some 400 tokens back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A prompt and its true continuation."""

    name: str
    """Kind of text."""
    seed: int
    """Its number."""
    prompt_ids: tuple[int, ...]
    """Read by the prefill."""
    forced_ids: tuple[int, ...]
    """What follows. The first is fed by the first step; each next one is predicted."""
    scored: tuple[bool, ...]
    """For each of `forced_ids` but the first, whether its prediction counts."""

    @property
    def steps(self) -> int:
        """Decode steps."""
        return len(self.forced_ids) - 1


def prose_window(tokenizer: Tokenizer, *, context: int, steps: int, seed: int) -> Text:
    """A window of real prose; every prediction counts.

    Sentences that the source repeats are left out: copying them is another task (`repeats`).

    Raises:
        ConfigError: the prose is shorter than the window.
    """
    return _window(
        tokenizer, list(dict.fromkeys(prose_sentences())), PROSE, (context, steps), seed=seed
    )


def repeats_window(tokenizer: Tokenizer, *, context: int, steps: int, seed: int) -> Text:
    """A window of the same source with the passages that it repeats word for word.

    Where one is met again the model copies it from thousands of tokens back.

    Raises:
        ConfigError: the source is shorter than the window.
    """
    return _window(tokenizer, list(prose_sentences()), REPEATS, (context, steps), seed=seed)


def _window(
    tokenizer: Tokenizer,
    sentences: list[str],
    name: str,
    sizes: tuple[int, int],
    *,
    seed: int,
) -> Text:
    context, steps = sizes
    start = int(seed * _WINDOW_STRIDE * len(sentences)) % len(sentences)
    wanted = context + steps + 1
    ids = tokenizer.encode(" ".join(sentences[start:] + sentences[:start]))
    if len(ids) < wanted:
        raise ConfigError(
            f"a window of {wanted} tokens is longer than the prose, which has {len(ids)}: ask for "
            "a shorter context or fewer steps"
        )
    return Text(
        name=name,
        seed=seed,
        prompt_ids=tuple(ids[:context]),
        forced_ids=tuple(ids[context:wanted]),
        scored=(True,) * steps,
    )


def ledger(rng: Random, size: int) -> list[tuple[str, bool]]:
    """`size` entries of keys and numbers, then each looked up once, in another order."""
    keys = distinct(word_key, size, rng=rng)
    values = {key: number(rng) for key in keys}
    asked = rng.sample(keys, size)
    pieces: list[tuple[str, bool]] = [("Ledger of accounts.\n", False)]
    pieces += [(f"The number of {key} is {values[key]}.\n", False) for key in keys]
    pieces.append(("\nNumbers looked up in the ledger above.\n", False))
    for key in asked:
        pieces += [(f"The number of {key} is", False), (f" {values[key]}", True), (".\n", False)]
    return pieces


def sums(rng: Random, size: int) -> list[tuple[str, bool]]:
    """`size` payments into a few accounts, each with the account's new balance."""
    names = distinct(word_key, min(_ACCOUNTS, size // 4 + 1), rng=rng)
    balances = {name: 100 * rng.randrange(10, 90) for name in names}
    pieces: list[tuple[str, bool]] = [("Payments and balances.\n", False)]
    pieces += [(f"{name}: balance {balances[name]}\n", False) for name in names]
    for _ in range(size):
        name, paid = rng.choice(names), 100 * rng.randrange(1, 9)
        text = f"{name}: balance {balances[name]} plus {paid} gives"
        balances[name] += paid
        # The old balance is recalled, the new one is computed from it: both count.
        head, _, rest = text.partition(" balance ")
        old, _, tail = rest.partition(" ")
        pieces += [
            (f"{head} balance", False),
            (f" {old}", True),
            (f" {tail}", False),
            (f" {balances[name]}", True),
            ("\n", False),
        ]
    return pieces


def copy(rng: Random, size: int) -> list[tuple[str, bool]]:
    """A list of `size` random words and numbers, and the same list again."""
    items = [f"{word_key(rng)} {rng.randrange(10, 100)}" for _ in range(size)]
    listed = ", ".join(items)
    return [
        ("A list to be copied: ", False),
        (listed, False),
        (".\nThe same list once more: ", False),
        (listed, True),
        (".\n", False),
    ]


LONG_TEXTS: Mapping[str, Callable[[Random, int], list[tuple[str, bool]]]] = MappingProxyType(
    {"ledger": ledger, "sums": sums, "copy": copy}
)
"""Each writes a text of a size as pieces, with those marked that count."""


def long_text(tokenizer: Tokenizer, *, name: str, context: int, steps: int, seed: int) -> Text:
    """The largest text of a kind that fits; what follows its first `context` tokens is generated.

    Raises:
        ConfigError: not even the smallest one fits, or the context leaves nothing that counts.
    """
    write = LONG_TEXTS[name]
    limit = context + steps + 1

    def tokens(size: int) -> tuple[list[int], list[bool]]:
        return _marked(tokenizer, write(Random(f"{name}/{seed}"), size))

    size = _largest(lambda size: len(tokens(size)[0]) <= limit, at_most=limit)
    ids, marks = tokens(size) if size else ([], [])
    scored = marks[context + 1 :]
    if not any(scored):
        raise ConfigError(
            f"a text of kind {name} does not fit {context} tokens of context and {steps} steps: "
            "give more steps"
        )
    return Text(
        name=name,
        seed=seed,
        prompt_ids=tuple(ids[:context]),
        forced_ids=tuple(ids[context:]),
        scored=tuple(scored),
    )


def _marked(tokenizer: Tokenizer, pieces: list[tuple[str, bool]]) -> tuple[list[int], list[bool]]:
    """Tokens of the pieces' text, and whether each touches a piece that counts."""
    text = "".join(piece for piece, _ in pieces)
    ids, offsets = tokenizer.encode_with_offsets(text)
    counts = bytearray(len(text))
    at = 0
    for piece, marked in pieces:
        if marked:
            counts[at : at + len(piece)] = b"\x01" * len(piece)
        at += len(piece)
    return ids, [any(counts[start:stop]) for start, stop in offsets]


def _largest(fits: Callable[[int], bool], *, at_most: int) -> int:
    """The largest size that fits, 0 if none does; sizes above one that fails fail too."""
    low, high = 0, 1
    while high <= at_most and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
