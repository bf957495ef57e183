"""Variable tracking: a chain of assignments hidden in noise, all names of one value asked for."""

from random import Random

from loadtest.quality.tasks.haystack import NOISE, Needle, hide
from loadtest.quality.tasks.prompt import Draft, PromptWriter, fit
from loadtest.quality.tasks.sample import Sample, Span
from loadtest.quality.tasks.words import distinct, variable

_HOPS = 4
_NEW_TOKENS = 30
_INSTRUCTION = "Follow the chain of variable assignments that is hidden in the text below.\n\n"


def variable_tracking_sample(writer: PromptWriter, *, length: int, seed: int) -> Sample:
    """RULER's `vt`: one chain of four hops, its assignments in order at random lines.

    Args:
        writer: writes for the model.
        length: tokens of the prompt and of the answer together.
        seed: number of the sample.

    Raises:
        ConfigError: the length has no room for the chain.
    """
    limit = length - _NEW_TOKENS
    rng = Random(f"vt/{length}/{seed}")
    names = distinct(variable, _HOPS + 1, rng=rng)
    value = str(rng.randrange(10_000, 100_000))
    depths = sorted(rng.random() for _ in names)
    sources = [value, *(f"VAR {name}" for name in names)]
    needles = [
        Needle(f"VAR {name} = {source}", depth)
        for name, source, depth in zip(names, sources, depths, strict=False)
    ]
    draft = fit(
        writer,
        lambda size: _draft(needles, names, value=value, size=size),
        limit=limit,
        guess=limit // 28,
    )
    written = writer.write(draft)
    return Sample(
        task="vt",
        prompt_ids=written.token_ids,
        answer_text=draft.answer,
        answer_ids=written.answer_ids,
        answers=tuple(names),
        question_span=written.question_span,
        needle_spans=written.mark_spans,
        depth=None,
        length=length,
        seed=seed,
        max_new_tokens=_NEW_TOKENS,
    )


def _draft(needles: list[Needle], names: list[str], *, value: str, size: int) -> Draft:
    text, spans = hide([NOISE] * size, needles, joiner="\n")
    shift = len(_INSTRUCTION)
    return Draft(
        context=_INSTRUCTION + text,
        question=(
            f"\n\nWhich variables have the value {value}, directly or through other variables? "
            f"There are {len(names)} of them."
        ),
        answer=" " + ", ".join(names),
        answer_prefix=f"The {len(names)} variables that have the value {value} are:",
        marks=tuple(Span(a + shift, b + shift) for a, b in spans),
    )
