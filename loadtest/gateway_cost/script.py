"""What the simulated workers say, so that a client can tell whether all of it arrived."""

from collections.abc import Sequence

from shared.tokenizer.tokenizer import Tokenizer

_SENTENCES = (
    "The prefill service reads the whole prompt once and keeps the tokens that later layers need.",
    " A decode service then writes the answer, one token after the other, until it said enough.",
    " Cafés in Zürich, 東京 and São Paulo send prompts at the same time 🙂 and none of them waits.",
    " Numbers such as 3.14159, 42 and 1,000,000 are cut into several tokens by most vocabularies.",
    " Between the two services moves the key-value cache, pruned, with its old positions.",
)


class Script:
    """An endless answer, the same in every process that has the tokenizer.

    Args:
        tokenizer: of the served model.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        parts = [tokenizer.encode(text, add_special_tokens=False) for text in _SENTENCES]
        self.token_ids: tuple[int, ...] = tuple(token for part in parts for token in part)
        """One round of it."""
        self._starts = [sum(len(part) for part in parts[:index]) for index in range(len(parts))]

    def start(self, seed: int) -> int:
        """Where the answer to a seed begins: at one of the sentences."""
        return self._starts[seed % len(self._starts)]

    def answer(self, seed: int, tokens: int) -> Sequence[int]:
        """The first `tokens` token ids of an answer."""
        first, ids = self.start(seed), self.token_ids
        return [ids[(first + index) % len(ids)] for index in range(tokens)]

    def text(self, seed: int, tokens: int) -> str:
        """The text of an answer of that length."""
        return self._tokenizer.decode(self.answer(seed, tokens))
