"""Turns the tokens of one answer into certain text and finds its end."""

from collections.abc import Sequence

from gateway.job import GenerationJob, TextDelta
from shared.tokenizer.detokenizer import IncrementalDetokenizer
from shared.tokenizer.stop_filter import StopFilter
from shared.tokenizer.tokenizer import Tokenizer
from shared.types.sampling import FinishReason, SampledToken


class Answer:
    """One answer as it grows.

    Args:
        job: its stop conditions.
        tokenizer: gives the text.
        branch: which of the job's answers it is.
    """

    def __init__(self, job: GenerationJob, *, tokenizer: Tokenizer, branch: int = 0) -> None:
        self._branch = branch
        self._stop = job.stop
        self._stop_ids = frozenset(job.stop.token_ids)
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._visible = job.plan.visible
        self._filter = StopFilter(job.stop.strings, include_match=job.include_stop)
        self.completion_tokens = 0
        self.reason: FinishReason | None = None
        self.stop_match: str | None = None

    def push(self, tokens: Sequence[SampledToken]) -> TextDelta:
        """Takes tokens up to the end of the answer; later ones are dropped."""
        pieces: list[str] = []
        taken: list[SampledToken] = []
        for token in tokens:
            if self.reason is not None:
                break
            self.completion_tokens += 1
            if self._ends_by_id(token.token_id):
                pieces.append(self._end(FinishReason.STOP, match=str(token.token_id)))
                break
            taken.append(token)
            pieces.append(self._take(token.token_id))
        return self._delta(pieces, taken)

    def finish(self, reason: FinishReason, *, match: str | None) -> TextDelta:
        """Ends the answer on the decode worker's word; releases the withheld text."""
        pieces = [self._end(reason, match=match)] if self.reason is None else []
        return self._delta(pieces, [])

    def _ends_by_id(self, token_id: int) -> bool:
        return token_id in self._stop_ids and self.completion_tokens >= self._stop.min_tokens

    def _take(self, token_id: int) -> str:
        armed = self.completion_tokens >= self._stop.min_tokens
        text = self._filter.push(self._text_of(token_id), armed=armed)
        if self._filter.matched is not None:
            self.reason, self.stop_match = FinishReason.STOP, self._filter.matched
        elif self.completion_tokens >= self._stop.max_tokens:
            text += self._end(FinishReason.LENGTH, match=None)
        return text

    def _text_of(self, token_id: int) -> str:
        """Text that a token completes; special tokens that mark tool calls stand in it as well."""
        marker = self._visible.get(token_id)
        if marker is not None:
            return self._detokenizer.flush() + marker
        return self._detokenizer.push([token_id])

    def _end(self, reason: FinishReason, *, match: str | None) -> str:
        tail = self._filter.push(self._detokenizer.flush())
        if self._filter.matched is not None:
            reason, match = FinishReason.STOP, self._filter.matched
        self.reason, self.stop_match = reason, match
        return tail + self._filter.flush()

    def _delta(self, pieces: list[str], tokens: list[SampledToken]) -> TextDelta:
        return TextDelta(
            text="".join(pieces),
            tokens=tuple(tokens),
            completion_tokens=self.completion_tokens,
            branch=self._branch,
        )
