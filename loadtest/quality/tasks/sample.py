"""One question with a known answer: what every task gives to whoever measures."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Span(NamedTuple):
    """A half-open range `[start, stop)` of tokens or characters."""

    start: int
    stop: int


class Protocol(StrEnum):
    """What a ranker sees when it chooses the tokens to keep."""

    QUESTION_INCLUDED = "included"
    QUESTION_EXCLUDED = "excluded"


@dataclass(frozen=True)
class Sample:
    """A prompt, what a right answer is, and where in the prompt it stands."""

    task: str
    """Name of the task, such as `niah_noise_1key` or `multikey_2`."""
    prompt_ids: tuple[int, ...]
    """The whole prompt; the answer's first token comes next."""
    answer_text: str
    """A right continuation of the prompt, word for word."""
    answer_ids: tuple[int, ...]
    """The tokens of `answer_text` after the prompt, for teacher forcing."""
    answers: tuple[str, ...]
    """The references that `metric` compares an output with."""
    question_span: Span
    """Tokens after the context: the question, the template's tail, the answer's beginning."""
    needle_spans: tuple[Span, ...]
    """Tokens that hold what must be found, in the order of `answers`; empty where unknown."""
    depth: float | None
    """Where in the context the needle stands, 0 (start) to 1 (end); None without a single one."""
    length: int
    """The length asked for, in tokens; the prompt may be a little shorter."""
    seed: int
    """Number of the sample among those of its task, length and depth."""
    max_new_tokens: int
    """How many tokens an answer may take."""
    metric: str = "string_match_all"
    """A name in `loadtest.quality.tasks.scoring.METRICS`."""
    classes: tuple[str, ...] = ()
    """All class names of a classification task."""
    first_line: bool = False
    """Only the first line of an output counts."""

    def split(self, protocol: Protocol) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens that are ranked and pruned, and those that follow unpruned at their positions.

        With the question excluded a ranker chooses before it sees what will be asked.
        """
        if protocol is Protocol.QUESTION_INCLUDED:
            return self.prompt_ids, ()
        start = self.question_span.start
        return self.prompt_ids[:start], self.prompt_ids[start:]
