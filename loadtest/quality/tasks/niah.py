"""Needles in a haystack: sentences that give keys their values, and a question for some of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from types import MappingProxyType

from loadtest.quality.tasks.haystack import NOISE, Needle, hide, prose, prose_start
from loadtest.quality.tasks.prompt import Draft, PromptWriter, fit
from loadtest.quality.tasks.sample import Sample, Span
from loadtest.quality.tasks.words import distinct, identifier, number, word_key

_DEPTHS = tuple(step / 39 for step in range(40))


class Haystack(StrEnum):
    """What surrounds the needles."""

    NOISE = "noise"
    PROSE = "prose"
    NEEDLES = "needles"


_DRAWS: Mapping[str, Callable[[Random], str]] = MappingProxyType(
    {"word": word_key, "number": number, "uuid": identifier}
)


@dataclass(frozen=True)
class NiahTask:
    """The shape of a needle question; keys that are not asked for only distract."""

    haystack: Haystack
    key: str = "word"
    value: str = "number"
    num_keys: int = 1
    num_values: int = 1
    num_queries: int = 1


@dataclass(frozen=True)
class Budget:
    """Tokens that a sample may take."""

    length: int
    """The length asked for."""
    prompt_tokens: int
    """What of it the prompt may take."""
    new_tokens: int
    """How many tokens an answer may take."""


@dataclass(frozen=True)
class _Hidden:
    """What one sample hides and asks for; the haystack's size comes later."""

    queries: tuple[str, ...]
    answers: tuple[str, ...]
    needles: tuple[Needle, ...]
    num_asked: int
    start: int
    seed: int


def niah_sample(
    writer: PromptWriter,
    *,
    name: str,
    task: NiahTask,
    budget: Budget,
    depth: float | None,
    seed: int,
) -> Sample:
    """A needle question.

    Args:
        writer: writes for the model.
        name: the sample's task.
        task: its shape.
        budget: tokens that it may take.
        depth: where the first asked needle stands; None draws it.
        seed: number of the sample.

    Raises:
        ConfigError: the prompt has no room for the needles.
    """
    limit = budget.prompt_tokens
    rng = Random(f"{name}/{budget.length}/{depth}/{seed}")
    hidden = _hidden(rng, task, depth=depth)
    draft = fit(
        writer, lambda size: _draft(task, hidden, size=size), limit=limit, guess=limit // 28
    )
    written = writer.write(draft)
    single = hidden.num_asked == 1
    return Sample(
        task=name,
        prompt_ids=written.token_ids,
        answer_text=draft.answer,
        answer_ids=written.answer_ids,
        answers=hidden.answers,
        question_span=written.question_span,
        needle_spans=written.mark_spans,
        depth=hidden.needles[0].depth if single else None,
        length=budget.length,
        seed=seed,
        max_new_tokens=budget.new_tokens,
    )


def _hidden(rng: Random, task: NiahTask, *, depth: float | None) -> _Hidden:
    keys = distinct(_DRAWS[task.key], task.num_keys, rng=rng)
    values = distinct(_DRAWS[task.value], task.num_keys * task.num_values, rng=rng)
    depths = rng.sample(_DEPTHS, len(values))
    if depth is not None:
        depths[0] = depth
    needles = tuple(
        Needle(_sentence(task, keys[i // task.num_values], value), depths[i])
        for i, value in enumerate(values)
    )
    asked = task.num_queries * task.num_values
    return _Hidden(
        queries=tuple(keys[: task.num_queries]),
        answers=tuple(values[:asked]),
        needles=needles,
        num_asked=asked,
        start=prose_start(rng),
        seed=rng.getrandbits(64),
    )


def _draft(task: NiahTask, hidden: _Hidden, *, size: int) -> Draft:
    units, joiner = _units(task, hidden, size=size)
    text, spans = hide(units, hidden.needles, joiner=joiner)
    several = hidden.num_asked > 1
    noun = f"{task.value}s" if several else task.value
    instruction = (
        f"Special magic {noun} are hidden in the text below. Remember them, I will ask for them "
        "afterwards.\n\n"
        if several
        else f"A special magic {noun} is hidden in the text below. Remember it, I will ask for it "
        "afterwards.\n\n"
    )
    asked = _listed(hidden.queries)
    verb = "are" if several else "is"
    question = (
        f"\n\nWhat {verb} {'all ' if several else ''}the special magic {noun} for {asked} in the "
        "text above?"
    )
    shift = len(instruction)
    return Draft(
        context=instruction + text,
        question=question,
        answer=" " + ", ".join(hidden.answers),
        answer_prefix=f"The special magic {noun} for {asked} {verb}:",
        marks=tuple(Span(a + shift, b + shift) for a, b in spans[: hidden.num_asked]),
    )


def _units(task: NiahTask, hidden: _Hidden, *, size: int) -> tuple[list[str], str]:
    if task.haystack is Haystack.NOISE:
        return [NOISE] * size, "\n"
    if task.haystack is Haystack.PROSE:
        return prose(size, start=hidden.start), " "
    rng = Random(hidden.seed)
    taken = set(hidden.queries)
    keys = distinct(_DRAWS[task.key], size + len(taken), rng=rng)
    others = [key for key in keys if key not in taken][:size]
    # Values come from a generator of each line's own, so that more lines do not change the first.
    return [
        _sentence(task, key, _DRAWS[task.value](Random(f"{hidden.seed}/{key}"))) for key in others
    ], "\n"


def _sentence(task: NiahTask, key: str, value: str) -> str:
    return f"One of the special magic {task.value}s for {key} is: {value}."


def _listed(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + f", and {names[-1]}"
