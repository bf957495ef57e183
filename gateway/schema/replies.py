"""Answers in the shapes that OpenAI clients parse."""

import datetime
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.job import Finished, TextDelta
from gateway.schema.generation import ChoicesBody
from gateway.schema.logprobs import CompletionLogprobs, chat_entries
from shared.tokenizer.tokenizer import Tokenizer
from shared.types.sampling import FinishReason, SampledToken

_FINISH = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What every chunk of one answer repeats."""

    reply_id: str
    """For example chatcmpl-1f3c."""
    created: int
    """Unix time, in seconds."""
    model: str
    """Served name."""
    fingerprint: str
    """Of the configuration."""

    def wrap(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """An object of this answer."""
        return {
            "id": self.reply_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }


def new_envelope(prefix: str, *, model: str, fingerprint: str) -> Envelope:
    """An envelope with a fresh id, for example with the prefix `chatcmpl-`."""
    return Envelope(
        reply_id=f"{prefix}{uuid.uuid4().hex}",
        created=int(datetime.datetime.now(datetime.UTC).timestamp()),
        model=model,
        fingerprint=fingerprint,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeAnswer:
    """One collected answer."""

    text: str
    """All of it."""
    tokens: tuple[SampledToken, ...]
    """All tokens but the end-of-text token."""
    end: Finished
    """The last event."""


class ReplyFormat(Protocol):
    """How one API writes answers; an instance serves one request."""

    def opening(self, choice: int) -> dict[str, Any] | None:
        """The chunk that goes before the first text of a choice."""
        ...

    def delta(self, choice: int, event: TextDelta) -> dict[str, Any] | None:
        """The chunk of new text; None when there is nothing to say yet."""
        ...

    def ending(self, choice: int, event: Finished) -> dict[str, Any]:
        """The chunk with the finish reason."""
        ...

    def usage_only(self) -> dict[str, Any]:
        """The chunk without choices that carries the usage."""
        ...

    def whole(self, answers: Sequence[WholeAnswer]) -> dict[str, Any]:
        """The body of an answer that is not streamed, one choice an answer."""
        ...


class ChatFormat:
    """`chat.completion` and its chunks."""

    def __init__(self, envelope: Envelope, *, body: ChoicesBody, tokenizer: Tokenizer) -> None:
        self._envelope = envelope
        self._body = body
        self._tokenizer = tokenizer

    def opening(self, choice: int) -> dict[str, Any] | None:
        """The role, once, with empty content."""
        return self._chunk(choice, {"role": "assistant", "content": ""})

    def delta(self, choice: int, event: TextDelta) -> dict[str, Any] | None:
        """New content."""
        logprobs = self._logprobs(event.tokens)
        if not event.text and logprobs is None:
            return None
        return self._chunk(choice, {"content": event.text}, logprobs=logprobs)

    def ending(self, choice: int, event: Finished) -> dict[str, Any]:
        """An empty delta with the reason."""
        chunk = self._chunk(choice, {})
        chunk["choices"][0] |= _end_fields(event, self._body)
        return chunk

    def usage_only(self) -> dict[str, Any]:
        """No choices."""
        return self._envelope.wrap("chat.completion.chunk", [])

    def whole(self, answers: Sequence[WholeAnswer]) -> dict[str, Any]:
        """One choice a message."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": answer.text, "refusal": None},
                "logprobs": self._logprobs(answer.tokens),
                **_end_fields(answer.end, self._body),
            }
            for index, answer in enumerate(answers)
        ]
        return self._envelope.wrap("chat.completion", choices) | totals(answers)

    def _chunk(
        self, choice: int, delta: dict[str, Any], *, logprobs: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        entry = {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": None}
        return self._envelope.wrap("chat.completion.chunk", [entry])

    def _logprobs(self, tokens: Sequence[SampledToken]) -> dict[str, Any] | None:
        if self._body.top_logprob_count() is None or not tokens:
            return None
        return {"content": chat_entries(tokens, self._tokenizer), "refusal": None}


class CompletionFormat:
    """`text_completion`, whole and in chunks."""

    def __init__(self, envelope: Envelope, *, body: ChoicesBody, tokenizer: Tokenizer) -> None:
        self._envelope = envelope
        self._body = body
        self._tokenizer = tokenizer
        self._running: dict[int, CompletionLogprobs] = {}

    def opening(self, choice: int) -> dict[str, Any] | None:
        """Empty text where there is more than one choice, so that they appear in order."""
        return self._chunk(choice, "", None) if self._body.choices() > 1 else None

    def delta(self, choice: int, event: TextDelta) -> dict[str, Any] | None:
        """New text."""
        wanted = self._body.top_logprob_count() is not None and bool(event.tokens)
        if not event.text and not wanted:
            return None
        running = self._running.setdefault(choice, CompletionLogprobs(self._tokenizer))
        return self._chunk(choice, event.text, running.take(event.tokens) if wanted else None)

    def ending(self, choice: int, event: Finished) -> dict[str, Any]:
        """Empty text with the reason."""
        chunk = self._chunk(choice, "", None)
        chunk["choices"][0] |= _end_fields(event, self._body)
        return chunk

    def usage_only(self) -> dict[str, Any]:
        """No choices."""
        return self._envelope.wrap("text_completion", [])

    def whole(self, answers: Sequence[WholeAnswer]) -> dict[str, Any]:
        """The choices of the first prompt, then those of the next."""
        wanted = self._body.top_logprob_count() is not None
        choices = [
            {
                "index": index,
                "text": answer.text,
                "logprobs": CompletionLogprobs(self._tokenizer).take(answer.tokens)
                if wanted
                else None,
                **_end_fields(answer.end, self._body),
            }
            for index, answer in enumerate(answers)
        ]
        return self._envelope.wrap("text_completion", choices) | totals(answers)

    def _chunk(self, choice: int, text: str, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        entry = {"index": choice, "text": text, "logprobs": logprobs, "finish_reason": None}
        return self._envelope.wrap("text_completion", [entry])


def usage_of(*, prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """The usage object; the prompt counts whole, pruned or not."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def totals(answers: Sequence[WholeAnswer]) -> dict[str, Any]:
    """Usage over all answers, each prompt once; the `tandem` object tells of the first prompt."""
    return {
        "usage": usage_of(
            prompt_tokens=sum(a.end.prompt_tokens for a in answers if a.end.branch == 0),
            completion_tokens=sum(answer.end.completion_tokens for answer in answers),
        ),
        "tandem": answers[0].end.report.extension(),
    }


def _end_fields(event: Finished, body: ChoicesBody) -> dict[str, Any]:
    return {"finish_reason": _FINISH[event.reason], "stop_reason": _stop_reason(event, body)}


def _stop_reason(event: Finished, body: ChoicesBody) -> str | int | None:
    """The stop string or the client's own stop id; end-of-text has no reason of its own."""
    match = event.stop_match
    if match is None or match in (body.stop or ()):
        return match
    known = match.isdecimal() and int(match) in (body.stop_token_ids or ())
    return int(match) if known else None
