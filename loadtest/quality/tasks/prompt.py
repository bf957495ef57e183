"""Text to prompt: chat template, tokens, and where each part of the text ends up among them."""

from collections.abc import Callable
from dataclasses import dataclass

from loadtest.quality.tasks.sample import Span
from shared.errors import ConfigError
from shared.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Draft:
    """The text of a prompt, in the parts that measuring must tell apart."""

    context: str
    """What an answer is looked up in, with the instruction before it."""
    question: str
    """What follows the context directly; it brings its own line breaks."""
    answer: str
    """A right answer, as it continues the prompt (usually from a space on)."""
    answer_prefix: str = ""
    """How the answer begins; put into the assistant's mouth."""
    marks: tuple[Span, ...] = ()
    """Character ranges of the context to be found again as token ranges."""
    chat: bool = True
    """The text is a user's message; False leaves the model's chat template out."""


@dataclass(frozen=True)
class WrittenPrompt:
    """The tokens of a draft."""

    token_ids: tuple[int, ...]
    """The prompt."""
    answer_ids: tuple[int, ...]
    """The answer's tokens after it."""
    question_span: Span
    """Tokens after the context, up to the end of the prompt."""
    mark_spans: tuple[Span, ...]
    """The token ranges that cover the draft's marks."""


class PromptWriter:
    """Writes drafts for one model.

    Args:
        tokenizer: the model's; its chat template is used where there is one.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def count(self, draft: Draft) -> int:
        """Number of tokens of the prompt."""
        text, special = self._text(draft)
        return len(self.tokenizer.encode(text, add_special_tokens=special))

    def write(self, draft: Draft) -> WrittenPrompt:
        """The tokens of a draft and of its answer.

        Raises:
            ConfigError: the chat template does not show the message as it is.
        """
        text, special = self._text(draft)
        ids, offsets = self.tokenizer.encode_with_offsets(text, add_special_tokens=special)
        shift = _where_content_starts(text, draft)
        question_at = shift + len(draft.context)
        first = next((i for i, (_, stop) in enumerate(offsets) if stop > question_at), len(ids))
        marks = tuple(_covering(offsets, mark, shift=shift) for mark in draft.marks)
        answer = self._answer_ids(text, ids, draft.answer, special=special)
        return WrittenPrompt(tuple(ids), answer, Span(first, len(ids)), marks)

    def _text(self, draft: Draft) -> tuple[str, bool]:
        """The prompt's text, and whether the tokenizer has to add its special tokens."""
        content = draft.context + draft.question
        template = self.tokenizer.chat_template
        if draft.chat and template is not None:
            rendered = template.render([{"role": "user", "content": content}])
            return rendered + draft.answer_prefix, False
        separator = "\n" if draft.answer_prefix else ""
        return content + separator + draft.answer_prefix, True

    def _answer_ids(
        self, text: str, ids: list[int], answer: str, *, special: bool
    ) -> tuple[int, ...]:
        whole = self.tokenizer.encode(text + answer, add_special_tokens=special)
        if whole[: len(ids)] == ids:
            return tuple(whole[len(ids) :])
        # The answer would melt into the prompt's last token, or a closing token was added.
        return tuple(self.tokenizer.encode(answer, add_special_tokens=False))


def fit(
    writer: PromptWriter, draft_of: Callable[[int], Draft], *, limit: int, guess: int = 8
) -> Draft:
    """The draft of the largest size whose prompt has at most `limit` tokens.

    Args:
        writer: counts the tokens.
        draft_of: the draft of a size of 1 or more; more size, more tokens.
        limit: tokens of the prompt.
        guess: size to try first.

    Raises:
        ConfigError: not even size 1 fits.
    """
    counts: dict[int, int] = {}
    fits, fails, size = 0, None, max(guess, 1)
    while fails is None or fails - fits > 1:
        counts[size] = writer.count(draft_of(size))
        if counts[size] <= limit:
            fits = size
        else:
            fails = size
        size = _next_size(counts, fits=fits, fails=fails, limit=limit)
    if fits == 0:
        raise ConfigError(
            f"a prompt of {limit} tokens has no room for this task: even the smallest one takes "
            f"{counts[1]}; ask for longer prompts"
        )
    return draft_of(fits)


def _next_size(counts: dict[int, int], *, fits: int, fails: int | None, limit: int) -> int:
    """Interpolates between the sizes known, and always goes on by at least one."""
    low = min(counts) if fits == 0 else fits
    other = [size for size in counts if size != low]
    nearest = min(other, key=lambda size: abs(size - low), default=None)
    if nearest is None:
        per_unit = counts[low] / low
    else:
        per_unit = max((counts[nearest] - counts[low]) / (nearest - low), 1.0)
    size = low + int((limit - counts[low]) / per_unit)
    if fails is None:
        return max(size, fits + 1)
    return min(max(size, fits + 1), max(fails - 1, 1))


def _where_content_starts(text: str, draft: Draft) -> int:
    """Characters before the message's first one; negative when the template cut white space."""
    content = draft.context + draft.question
    found = text.find(content.strip())
    if found < 0:
        raise ConfigError(
            "the model's chat template changes the text of a message, so that its parts cannot be "
            "found again; use a model folder with a plain chat template"
        )
    return found - (len(content) - len(content.lstrip()))


def _covering(offsets: list[tuple[int, int]], mark: Span, *, shift: int) -> Span:
    start, stop = mark.start + shift, mark.stop + shift
    touched = [i for i, (low, high) in enumerate(offsets) if low < stop and high > start]
    assert touched, "a mark holds text, and every text has tokens"
    return Span(touched[0], touched[-1] + 1)
