"""Where the named parts of a conversation lie in its tokens: what to protect, how wide the window.

A chat template is a program, so a part is found by running it again with a marker in the place of
one turn's content: what stands before and after the marker must be the prompt's own text.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shared.errors import InvalidRequestError
from shared.tokenizer.chat_template import ChatTemplate
from shared.types.options import MAX_PROTECTED_RANGES, PromptPart, RequestOptions, TokenRange

MIN_QUESTION_WINDOW = 8
"""Shortest observation window that a question gives, in tokens: the papers' own."""

MAX_QUESTION_WINDOW = 64
"""Longest one: a turn that is longer is taken to end with its question."""

_SYSTEM_ROLES = frozenset({"system", "developer"})
_MARKER = "\ue000part\ue000"
_SENTENCE_BREAK = re.compile(r"[.!?][\"')\]]*\s+|[。！？]|\n+")

Span = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedParts:
    """What a client wants of the conversation's own parts."""

    protect: tuple[PromptPart, ...] = ()
    """Parts that are always kept."""
    question_window: bool = False
    """The observation window is the question's."""

    @property
    def anything(self) -> bool:
        """Whether the conversation has to be looked at."""
        return bool(self.protect) or self.question_window

    @property
    def param(self) -> str:
        """The request field that asked."""
        return "tandem.protect" if self.protect else "tandem.window"


NOTHING_ASKED = AskedParts()


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedChat:
    """A conversation and the text that it became."""

    template: ChatTemplate
    """What rendered it."""
    messages: Sequence[Mapping[str, Any]]
    """Turns with `role` and `content`."""
    variables: Mapping[str, Any]
    """Extra template variables."""
    text: str
    """The prompt."""

    def spans(self, part: PromptPart, *, param: str) -> list[Span]:
        """Characters of a part.

        Raises:
            InvalidRequestError: there is no such part, or the template changes it.
        """
        if part is PromptPart.SYSTEM:
            return list(self._system(param))
        start, end = self._content(self._last_user(param), param)
        if part is PromptPart.QUESTION:
            start += last_sentence(self.text[start:end])
        return [(start, end)]

    def _system(self, param: str) -> Iterator[Span]:
        turns = [str(message.get("role")) in _SYSTEM_ROLES for message in self.messages]
        if sum(turns) > MAX_PROTECTED_RANGES:
            # Each costs a rendering of the whole conversation, and so many would be refused anyway.
            raise InvalidRequestError(
                f"{sum(turns)} system turns would be protected, more than {MAX_PROTECTED_RANGES}; "
                "join some, or leave the system part out",
                param=param,
            )
        if False in turns:
            yield 0, self._content(turns.index(False), param)[0]
        for index, is_system in enumerate(turns):
            if is_system:
                yield self._content(index, param)

    def _last_user(self, param: str) -> int:
        for index in range(len(self.messages) - 1, -1, -1):
            if self.messages[index].get("role") == "user":
                return index
        raise InvalidRequestError(
            "the conversation has no user turn, so there is no question to look for; "
            "add one, or give token ranges and a window in tokens",
            param=param,
        )

    def _content(self, index: int, param: str) -> Span:
        marked = list(self.messages)
        marked[index] = {**marked[index], "content": _MARKER}
        other = self.template.render(marked, variables=self.variables)
        before, marker, after = other.partition(_MARKER)
        start, end = len(before), len(self.text) - len(after)
        verbatim = self.text.startswith(before) and self.text.endswith(after) and start <= end
        if not marker or _MARKER in after or not verbatim:
            raise InvalidRequestError(
                f"turn {index} of the conversation cannot be found in the prompt: the model's chat "
                "template drops, repeats or rewrites it; give token ranges or a window in tokens "
                "instead of names",
                param=param,
            )
        return start, end


def resolve_parts(
    chat: RenderedChat,
    *,
    offsets: Sequence[Span],
    options: RequestOptions,
    asked: AskedParts,
) -> RequestOptions:
    """`options` with the token ranges and the window of the parts that were asked for.

    Args:
        chat: the conversation.
        offsets: characters of each prompt token.
        options: the client's own ranges stay.
        asked: which parts.

    Raises:
        InvalidRequestError: the conversation does not have a part, or it cannot be found.
    """
    spans = (span for part in asked.protect for span in chat.spans(part, param=asked.param))
    ranges = (*options.protect, *_token_ranges(spans, offsets))
    window = options.observation_window
    if asked.question_window:
        window = _question_window(chat, offsets, param="tandem.window")
    return replace(options, protect=tuple(dict.fromkeys(ranges)), observation_window=window)


def refuse_parts(asked: AskedParts) -> None:
    """Refuses named parts for a prompt that is no conversation.

    Raises:
        InvalidRequestError: a part was asked for.
    """
    if asked.anything:
        raise InvalidRequestError(
            "parts of a conversation were named, but this prompt is not one; "
            "give token ranges and a window in tokens, or send messages",
            param=asked.param,
        )


def last_sentence(text: str) -> int:
    """Where the last sentence or line of `text` begins; 0 if it has only one."""
    end = len(text.rstrip())
    starts = [m.end() for m in _SENTENCE_BREAK.finditer(text, 0, end) if m.end() < end]
    return starts[-1] if starts else 0


def _question_window(chat: RenderedChat, offsets: Sequence[Span], *, param: str) -> int:
    """Tokens from the last user turn, or from its last sentence if that is far, to the end."""
    for part in (PromptPart.LAST_USER, PromptPart.QUESTION):
        (tokens,) = _token_ranges(chat.spans(part, param=param), offsets) or [
            TokenRange(len(offsets), len(offsets))
        ]
        window = len(offsets) - tokens.start
        if window <= MAX_QUESTION_WINDOW:
            break
    return max(MIN_QUESTION_WINDOW, min(window, MAX_QUESTION_WINDOW))


def _token_ranges(spans: Iterable[Span], offsets: Sequence[Span]) -> list[TokenRange]:
    """Tokens that share a character with a span; a span without any is left out."""
    starts = [start for start, _ in offsets]
    ends = [end for _, end in offsets]
    ranges = (TokenRange(bisect_right(ends, a), bisect_left(starts, b)) for a, b in spans)
    return [tokens for tokens in ranges if tokens.start < tokens.end]
