"""One answer's place in its grammar.

Shapes: V vocabulary.
"""

from collections.abc import Sequence
from typing import Protocol

import llguidance
import numpy as np
import numpy.typing as npt

from shared.errors import InvalidRequestError

TOO_COMPLEX = "grammar_too_complex"


class TokenMatcher(Protocol):
    """Says which token may come next."""

    def allowed(self, vocab_size: int) -> npt.NDArray[np.bool_]:
        """Which ids may come next [V]; asking changes nothing."""

    def accept(self, token_id: int) -> None:
        """A token came; once for each token of the answer."""


class GrammarMatcher:
    """Follows the tokens of one answer; end-of-text is allowed where the grammar may end.

    Args:
        state: a fresh state of the compiled grammar; owned from now on.
    """

    def __init__(self, state: llguidance.LLMatcher) -> None:
        self._state = state

    def fork(self) -> "GrammarMatcher":
        """Another answer from the same place."""
        return GrammarMatcher(self._state.deep_copy())

    def allowed(self, vocab_size: int) -> npt.NDArray[np.bool_]:
        """Which ids may come next [V]; the same until a token is accepted.

        Raises:
            InvalidRequestError: the grammar's limits were passed, or it has no way on.
        """
        bits = np.frombuffer(self._state.compute_bitmask(), dtype=np.uint8)
        self._check()
        known = np.unpackbits(bits, bitorder="little").view(np.bool_)
        if known.size >= vocab_size:
            return known[:vocab_size]
        # The embedding may have more rows than the tokenizer has tokens; they mean nothing.
        return np.pad(known, (0, vocab_size - known.size))

    def follow(self, token_ids: Sequence[int]) -> int | None:
        """Moves on by the tokens of an answer so far.

        Returns:
            The index of the first token that may not come; the matcher has not moved then. None
            when all may.
        """
        num_admitted = self._state.validate_tokens(list(token_ids))
        if num_admitted < len(token_ids):
            return num_admitted
        self._state.consume_tokens(list(token_ids))
        return None

    def accept(self, token_id: int) -> None:
        """Moves on by one token.

        A token that is not allowed breaks the matcher; the next `allowed` says so. Nothing is
        raised here, where the rows of a step are already moving.
        """
        self._state.consume_token(token_id)

    @property
    def dead(self) -> bool:
        """Whether nothing can come and nothing is complete; for a fresh matcher."""
        self._state.compute_bitmask()
        return bool(self._state.is_stopped() and not self._state.is_accepting())

    def _check(self) -> None:
        if self._state.is_error():
            raise InvalidRequestError(
                "the answer's schema became too ambiguous to follow at this point of the answer: "
                "too many alternatives or too large patterns at once; simplify the schema",
                code=TOO_COMPLEX,
                param="response_format",
            )
