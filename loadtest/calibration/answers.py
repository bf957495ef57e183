"""Whether a model still begins and completes its answers when it reads pruned prompts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from loadtest.quality.answer import answers_are_greedy
from loadtest.quality.tasks.sample import Sample
from prefill_service.engine.evaluate import EvaluatedPrompt, evaluate_family
from shared.model.attention import PrefillAttention
from shared.model.transformer import Transformer
from shared.types.methods import PruningParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A prompt and what the full model makes of it."""

    sample: Sample
    """The prompt."""
    first_token: int
    """The likeliest token after it."""
    answer_ids: tuple[int, ...]
    """The right answer if full attention gives it, else the one that it gives; may be empty."""
    right: bool | None
    """Whether full attention answers right; None when no right answer is known."""

    @classmethod
    def of(
        cls,
        model: Transformer,
        full: EvaluatedPrompt,
        *,
        sample: Sample,
        greedy_ids: Sequence[int],
    ) -> "Target":
        """From the prompt read in full and its greedy answer, stop token left out."""
        right = None
        if sample.answer_ids:
            right = answers_are_greedy(model, [full], [sample.answer_ids])[0]
        return cls(
            sample=sample,
            first_token=int(full.logits_V.argmax()),
            answer_ids=sample.answer_ids if right else tuple(greedy_ids),
            right=right,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How often pruning leaves the answer as it was."""

    first_token: float
    """Share of prompts with the same first token."""
    answers: float | None
    """Share of the counted answers that stay the same, every token; None when none counts."""


def counted_targets(targets: Sequence[Target]) -> list[bool]:
    """Which answers count: those not known to be wrong; every one if all are wrong, or random."""
    wanted = [target.right is not False and len(target.answer_ids) > 0 for target in targets]
    return wanted if any(wanted) else [len(target.answer_ids) > 0 for target in targets]


def measure_agreement(
    model: Transformer,
    *,
    attention: PrefillAttention,
    targets: Sequence[Target],
    variants: Sequence[PruningParams],
    progress: Callable[[int], None],
) -> list[Agreement]:
    """Reads every prompt under every variant; the layers that they share run once a prompt.

    Args:
        model: the decoder.
        attention: its backend.
        targets: prompts with what is expected, at least one.
        variants: what to try.
        progress: told the number of prompts that are done.
    """
    first: list[list[bool]] = [[] for _ in variants]
    whole: list[list[bool]] = [[] for _ in variants]
    counted = counted_targets(targets)
    for done, (target, counts) in enumerate(zip(targets, counted, strict=True), start=1):
        read = evaluate_family(
            model, attention=attention, token_ids=target.sample.prompt_ids, variants=variants
        )
        for column, prompt in zip(first, read, strict=True):
            column.append(int(prompt.logits_V.argmax()) == target.first_token)
        if counts:
            same = answers_are_greedy(model, read, [target.answer_ids] * len(read))
            for column, verdict in zip(whole, same, strict=True):
                column.append(verdict)
        progress(done)
    return [
        Agreement(first_token=fmean(firsts), answers=fmean(wholes) if wholes else None)
        for firsts, wholes in zip(first, whole, strict=True)
    ]
