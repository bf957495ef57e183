"""Log-probabilities in the two shapes of the API."""

from collections.abc import Iterable, Sequence
from typing import Any

from shared.tokenizer.tokenizer import Tokenizer
from shared.types.sampling import SampledToken

UNLIKELY = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


def chat_entries(tokens: Iterable[SampledToken], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Entries of `logprobs.content`."""
    return [
        {
            **_entry(token.token_id, token.logprob, tokenizer),
            "top_logprobs": [_entry(token_id, p, tokenizer) for token_id, p in token.top],
        }
        for token in tokens
    ]


def no_entries(_tokens: Iterable[SampledToken]) -> list[dict[str, Any]]:
    """For a request without log-probabilities."""
    return []


class CompletionLogprobs:
    """Builds the `logprobs` object of a plain completion, which counts text offsets."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._offset = 0

    def take(self, tokens: Sequence[SampledToken]) -> dict[str, Any]:
        """The object for the next tokens."""
        texts = [_text(token.token_id, self._tokenizer) for token in tokens]
        offsets = []
        for text in texts:
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [_clamp(token.logprob) for token in tokens],
            "top_logprobs": [
                {_text(token_id, self._tokenizer): _clamp(p) for token_id, p in token.top}
                for token in tokens
            ],
            "text_offset": offsets,
        }


def _entry(token_id: int, logprob: float | None, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "token": _text(token_id, tokenizer),
        "logprob": _clamp(logprob),
        "bytes": list(tokenizer.token_bytes(token_id)),
    }


def _text(token_id: int, tokenizer: Tokenizer) -> str:
    return tokenizer.token_bytes(token_id).decode("utf-8", errors="replace")


def _clamp(logprob: float | None) -> float:
    # The comparison is false for NaN as well.
    return logprob if logprob is not None and logprob > UNLIKELY else UNLIKELY
