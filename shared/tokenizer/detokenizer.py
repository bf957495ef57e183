"""Text of a growing token sequence, complete characters only."""

from collections.abc import Sequence

from shared.tokenizer.tokenizer import Tokenizer

_WINDOW = 16
_MAX_HELD = 16
_KEPT_WHEN_FULL = 4
_INCOMPLETE = "\ufffd"


class IncrementalDetokenizer:
    """Releases text as tokens arrive and holds back incomplete UTF-8.

    The pieces of all `push` calls and of `flush` together are the decoded text of all tokens,
    however they were cut. Only a short window of tokens is decoded at each call. After 16 tokens
    without one complete character the bytes cannot be UTF-8 and the replacement characters are
    released, but for the last few.

    Args:
        tokenizer: decodes the ids.
        skip_special_tokens: special tokens have no text.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special_tokens
        self._ids: list[int] = []
        self._complete = 0  # ids of the window that ended in a complete character when last seen
        self._released = 0  # characters of the window's text that were handed out

    def push(self, ids: Sequence[int]) -> str:
        """Adds tokens and returns the text that they complete; often empty."""
        return "".join([self._push_one(token_id) for token_id in ids])

    def flush(self) -> str:
        """Returns what was held back; to be called once, at the end."""
        text = self._decode()[self._released :]
        self._ids.clear()
        self._complete = self._released = 0
        return text

    def _push_one(self, token_id: int) -> str:
        self._ids.append(token_id)
        text = self._decode()
        certain = len(text.rstrip(_INCOMPLETE))
        if certain == len(text):
            return self._release_all(text)
        if len(self._ids) - self._complete > _MAX_HELD:
            certain = max(certain, len(text) - _KEPT_WHEN_FULL)
        piece = text[self._released : certain]
        self._released = max(self._released, certain)
        return piece

    def _release_all(self, text: str) -> str:
        piece = text[self._released :]
        if len(self._ids) > _WINDOW and self._complete:
            # The kept tail gives the next token its left neighbour: some decoders strip a space at
            # the start.
            del self._ids[: self._complete]
            text = self._decode()
        self._complete = len(self._ids)
        self._released = len(text)
        return piece

    def _decode(self) -> str:
        return self._tokenizer.decode(self._ids, skip_special_tokens=self._skip_special)
