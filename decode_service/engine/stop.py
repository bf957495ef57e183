"""When an answer ends: stop ids, stop strings, the token limit, the end of the context."""

from collections.abc import Sequence
from dataclasses import dataclass

from shared.tokenizer.detokenizer import IncrementalDetokenizer
from shared.tokenizer.stop_filter import StopFilter
from shared.tokenizer.tokenizer import Tokenizer
from shared.types.sampling import FinishReason, StopConditions


@dataclass(frozen=True, slots=True, kw_only=True)
class StopVerdict:
    """Why an answer is over."""

    reason: FinishReason
    """STOP or LENGTH."""
    match: str = ""
    """The stop string, or the stop id in decimal, that matched."""


class StopTracker:
    """Watches the tokens of one answer, its first one included.

    Args:
        stop: the request's conditions.
        context_left: tokens the context has room for after the prompt.
        tokenizer: decodes for stop strings; unused when there are none.
    """

    def __init__(self, stop: StopConditions, *, context_left: int, tokenizer: Tokenizer) -> None:
        self._ids = frozenset(stop.token_ids)
        self._min_tokens = stop.min_tokens
        self._limit = min(stop.max_tokens, context_left)
        self._filter = StopFilter(stop.strings) if stop.strings else None
        self._detokenizer = IncrementalDetokenizer(tokenizer) if stop.strings else None
        self.num_tokens = 0

    @property
    def armed(self) -> bool:
        """Whether the token seen last may end the answer by a stop id or string."""
        return self.num_tokens >= self._min_tokens

    def observe(self, token_id: int) -> StopVerdict | None:
        """Counts a token; a verdict when the answer ends with it."""
        self.num_tokens += 1
        if self.armed and token_id in self._ids:
            return StopVerdict(reason=FinishReason.STOP, match=str(token_id))
        matched = self._match_strings(token_id)
        if matched is not None:
            return StopVerdict(reason=FinishReason.STOP, match=matched)
        if self.num_tokens >= self._limit:
            return StopVerdict(reason=FinishReason.LENGTH)
        return None

    def observe_all(self, token_ids: Sequence[int]) -> StopVerdict | None:
        """Counts tokens up to the end of the answer; the verdict when it is among them."""
        for token_id in token_ids:
            verdict = self.observe(token_id)
            if verdict is not None:
                return verdict
        return None

    def _match_strings(self, token_id: int) -> str | None:
        if self._filter is None or self._detokenizer is None:
            return None
        self._filter.push(self._detokenizer.push([token_id]), armed=self.armed)
        return self._filter.matched
