"""Prompts of an exact number of tokens that no cache has seen.

A long pool of words is drawn once; a prompt is words of its own, the salt, and a stretch of the
pool. So prompts cost little while requests are due, and two of them part within their first tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from loadtest.load.plan import PlannedRequest
from loadtest.load.trace import BLOCK_TOKENS

_NOUNS = """
time year people way day man thing woman life child world school state family student group
country problem hand part place case week company system program question work government number
night point home water room mother area money story fact month lot right study book eye job word
business issue side kind head house service friend father power hour game line end member law
car
"""
WORDS = tuple(_NOUNS.split())
"""65 common English nouns."""

_POOL_WORDS = 8_192
_SALT_WORDS = 16


@dataclass(frozen=True, slots=True)
class Word:
    """A word with the space before it."""

    text: str
    """Its characters."""
    token_ids: tuple[int, ...]
    """Its tokens; not empty."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt in both forms."""

    token_ids: list[int]
    """Exactly as many as were planned."""
    text: str
    """The same words; the last one is whole here."""


class PromptMaker:
    """Makes prompts.

    Args:
        words: what they are made of, in the tokens of the served model.
        seed: of the run.
    """

    def __init__(self, words: Sequence[Word], *, seed: int) -> None:
        self._words = words
        self._seed = seed
        self._pool = Random(f"{seed}:pool").choices(words, k=_POOL_WORDS)

    def make(self, request: PlannedRequest) -> Prompt:
        """The class's prefix, the salt, and a stretch of the pool; or the blocks of a trace."""
        if request.blocks:
            return self._of_blocks(request)
        return self._salted(
            f"{request.index}", tokens=request.prompt_tokens, prefix=request.kind.prefix_tokens
        )

    def words(self, request: PlannedRequest, *, turn: int, tokens: int) -> str:
        """What the user says in one turn of a conversation, in words of about so many tokens."""
        return self._salted(f"{request.index}:turn:{turn}", tokens=tokens, prefix=0).text

    def _salted(self, name: str, *, tokens: int, prefix: int) -> Prompt:
        random = Random(f"{self._seed}:prompt:{name}")
        chosen: list[Word] = []
        count = self._take(chosen, 0, start=0, wanted=min(prefix, tokens))
        salt = random.choices(self._words, k=_SALT_WORDS)
        for word in salt:
            if count < tokens:
                chosen.append(word)
                count += len(word.token_ids)
        self._take(chosen, count, start=random.randrange(_POOL_WORDS), wanted=tokens)
        token_ids = [token_id for word in chosen for token_id in word.token_ids]
        return Prompt(token_ids[:tokens], "".join(word.text for word in chosen).lstrip())

    def _of_blocks(self, request: PlannedRequest) -> Prompt:
        token_ids: list[int] = []
        texts: list[str] = []
        for block in request.blocks:
            wanted = min(BLOCK_TOKENS, request.prompt_tokens - len(token_ids))
            if wanted <= 0:
                break
            random = Random(f"{self._seed}:block:{block}")
            chosen = random.choices(self._words, k=_SALT_WORDS)
            count = sum(len(word.token_ids) for word in chosen)
            self._take(chosen, count, start=random.randrange(_POOL_WORDS), wanted=wanted)
            token_ids += [token_id for word in chosen for token_id in word.token_ids][:wanted]
            texts += [word.text for word in chosen]
        return Prompt(token_ids, "".join(texts).lstrip())

    def _take(self, chosen: list[Word], count: int, *, start: int, wanted: int) -> int:
        """Adds words of the pool until there are `wanted` tokens; how many there are."""
        index = start
        while count < wanted:
            word = self._pool[index % _POOL_WORDS]
            chosen.append(word)
            count += len(word.token_ids)
            index += 1
        return count
