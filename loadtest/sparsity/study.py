"""The parts of a study of page policies: which texts, under which arms.

Results are written as they come, and every part skips what the results folder already holds, so a
study that was stopped goes on.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from loadtest.evaluation import Progress
from loadtest.facts import Fact, FactStore
from loadtest.quality.study import MIXTURE_SEED
from loadtest.quality.tasks.needle import needle_mixture
from loadtest.quality.tasks.prompt import PromptWriter
from loadtest.quality.tasks.sample import Sample
from loadtest.sparsity.ablations import pruned_ablations, whole_ablations
from loadtest.sparsity.arms import FULL_ARM, Arm, dense_arm, policy_arms
from loadtest.sparsity.forced import ForcedText, arm_batches
from loadtest.sparsity.generation import FreeText
from loadtest.sparsity.needles import NeedleQuestion
from loadtest.sparsity.prefills import Prefill, Prefiller
from loadtest.sparsity.records import (
    ABLATION,
    GENERATION,
    LONG,
    NEEDLE,
    TEACHER,
    WHOLE,
    ForcedFact,
    GenerationFact,
    NeedleFact,
)
from loadtest.sparsity.resumed import check_keep_rate, check_sizes
from loadtest.sparsity.settings import StudySettings
from loadtest.sparsity.texts import LONG_TEXTS, Text, long_text, prose_window, repeats_window
from shared.errors import ConfigError
from shared.model.attention import PrefillAttention
from shared.model.transformer import Transformer
from shared.tokenizer.tokenizer import Tokenizer
from shared.types.methods import PruningParams, SparsityParams


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setup:
    """One model, ready to be measured."""

    model: Transformer
    """The decoder."""
    attention: PrefillAttention
    """Its prefill attention."""
    tokenizer: Tokenizer
    """Its tokenizer."""
    pruning: PruningParams
    """The profile's pruning."""
    sparsity: SparsityParams
    """The profile's page selection."""


class Study:
    """Runs parts of a study on one model.

    Args:
        setup: the model.
        settings: what to run.
        store: where results go; what it holds is not measured again.
        run: number of this run in the store.
        progress: is told how far it is.

    Raises:
        ConfigError: the texts do not fit the model's context.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        settings: StudySettings,
        store: FactStore,
        run: int,
        progress: Progress,
    ) -> None:
        limit = setup.model.config.max_position
        if settings.longest() > limit:
            raise ConfigError(
                f"the chosen parts need {settings.longest()} positions and the model has {limit}: "
                "shorten the contexts or give fewer steps"
            )
        self._setup = setup
        self._settings = settings
        self._store = store
        self._run = run
        self._progress = progress
        self._writer = PromptWriter(setup.tokenizer)
        self._started = time.monotonic()
        self._prefiller = Prefiller(
            model=setup.model,
            attention=setup.attention,
            base=setup.pruning,
            keep_rate=settings.keep_rate,
        )

    def run(self) -> bool:
        """Runs the chosen parts in order; False when the time was up before the end."""
        parts: dict[str, Callable[[], bool]] = {
            TEACHER: self._teacher,
            NEEDLE: self._needle,
            LONG: self._long,
            GENERATION: self._generation,
            ABLATION: self._ablation,
        }
        return all(run() for name, run in parts.items() if name in self._settings.parts)

    def _teacher(self) -> bool:
        settings = self._settings
        arms = self._policies(settings.budgets)
        texts = [
            self._window(seed, steps=settings.steps, context=settings.context)
            for seed in range(settings.windows)
        ]
        return self._continued(texts, arms, part=TEACHER)

    def _needle(self) -> bool:
        settings = self._settings
        arms = [
            arm
            for prefill in settings.needle_prefills
            for arm in self._policies(settings.budgets, prefill=prefill)
        ]
        return self._answered(
            arms,
            part=NEEDLE,
            wanted=settings.needle_answers,
            counted=(FULL_ARM, dense_arm(settings.needle_prefills[0])),
        )

    def _long(self) -> bool:
        settings = self._settings
        texts = [
            long_text(
                self._setup.tokenizer,
                name=name,
                context=settings.long_context,
                steps=settings.long_steps,
                seed=seed,
            )
            for seed in range(settings.long_samples)
            for name in LONG_TEXTS
        ] + [
            repeats_window(
                self._setup.tokenizer,
                context=settings.context,
                steps=settings.steps,
                seed=seed,
            )
            for seed in range(settings.long_samples)
        ]
        return self._continued(texts, self._policies(settings.long_budgets), part=LONG)

    def _generation(self) -> bool:
        settings = self._settings
        arms = policy_arms(
            self._setup.sparsity,
            names=settings.generation_policies,
            budgets=(settings.generation_pages,),
        )
        total = settings.generation_windows
        for seed in range(total):
            text = self._window(seed, steps=1, context=settings.generation_context)
            keys = [self._generation_key(text, arm) for arm in arms]
            check_sizes(self._store, keys, size=settings.generation_tokens)
            missing = [arm for arm in arms if self._generation_key(text, arm) not in self._store]
            if missing:
                if self._is_late():
                    return False
                self._generate(text, missing)
            self._progress(GENERATION, done=seed + 1, total=total)
        return True

    def _generate(self, text: Text, arms: Sequence[Arm]) -> None:
        settings = self._settings
        (whole,) = self._prefiller.read(text.prompt_ids, [WHOLE])
        free = FreeText(
            model=self._setup.model,
            text=text,
            whole=whole,
            tokens=settings.generation_tokens,
            temperature=settings.temperature,
            stop_ids=self._setup.tokenizer.eos_ids,
            strip_layers=settings.strip_layers,
            strip_steps=settings.strip_steps,
            run=self._run,
        )
        self._keep(free.measure(arms))

    def _generation_key(self, text: Text, arm: Arm) -> tuple[str | int | float, ...]:
        sample = (text.name, len(text.prompt_ids), text.seed, self._settings.temperature)
        return (GenerationFact.kind, *sample, arm.name, arm.budget)

    def _ablation(self) -> bool:
        settings, base = self._settings, self._setup.sparsity
        depth = self._setup.model.config.num_layers
        pruned = pruned_ablations(base, settings, num_layers=depth)
        arms = [*whole_ablations(base, settings, num_layers=depth), *pruned]
        texts = [
            self._window(seed, steps=settings.ablation_steps, context=settings.context)
            for seed in range(settings.ablation_windows)
        ]
        return self._continued(texts, arms, part=ABLATION) and self._answered(
            pruned, part=ABLATION, wanted=settings.ablation_answers, counted=(FULL_ARM,)
        )

    def _continued(self, texts: Sequence[Text], arms: Sequence[Arm], *, part: str) -> bool:
        """Every text under every arm."""
        check_keep_rate(self._store, arms, keep_rate=self._settings.keep_rate)
        done, total = 0, len(texts) * len(arms)
        for text in texts:
            keys = [_forced_key(text, arm, part) for arm in arms]
            check_sizes(self._store, keys, size=text.steps)
            missing = [arm for arm in arms if _forced_key(text, arm, part) not in self._store]
            done += len(arms) - len(missing)
            for prefill, whole in self._prefills(text, missing):
                forced = ForcedText(
                    model=self._setup.model,
                    text=text,
                    prefill=prefill,
                    whole=None if prefill is whole else whole,
                    sample_every=self._settings.sample_every,
                )
                own = [arm for arm in missing if arm.prefill == prefill.name]
                for batch in arm_batches(self._setup.model, own, room=text.steps):
                    if self._is_late():
                        return False
                    self._keep(forced.measure(batch, part=part, run=self._run))
                    done += len(batch)
                    self._progress(part, done=done, total=total)
        # A text that came too late even for its prefills is left out.
        return done == total

    def _prefills(self, text: Text, arms: Sequence[Arm]) -> Iterable[tuple[Prefill, Prefill]]:
        """Each prefill that arms need, and the whole one beside it."""
        if not arms or self._is_late():
            return
        names = [WHOLE, *sorted({arm.prefill for arm in arms} - {WHOLE})]
        whole: Prefill | None = None
        for prefill in self._prefiller.read(text.prompt_ids, names):
            whole = prefill if whole is None else whole
            yield prefill, whole

    def _answered(
        self, arms: Sequence[Arm], *, part: str, wanted: int, counted: Sequence[Arm]
    ) -> bool:
        """Questions of the needle mixture, until all of `counted` answer enough of them."""
        settings, done = self._settings, 0
        check_keep_rate(self._store, arms, keep_rate=settings.keep_rate)
        candidates = needle_mixture(
            self._writer,
            count=settings.needle_prompts,
            lengths=settings.needle_lengths,
            seed=MIXTURE_SEED,
        )
        for sample in candidates:
            if done >= wanted:
                break
            if self._is_late():
                return False
            self._ask(sample, arms, part=part)
            done += all(self._is_right(sample, arm, part) for arm in counted)
            self._progress(part, done=done, total=wanted)
        return True

    def _ask(self, sample: Sample, arms: Sequence[Arm], *, part: str) -> None:
        """Measures what is missing of one question; nothing beyond full if that is wrong."""
        full_known = _needle_key(sample, FULL_ARM, part) in self._store
        missing = [arm for arm in arms if _needle_key(sample, arm, part) not in self._store]
        hopeless = full_known and not self._is_right(sample, FULL_ARM, part)
        if hopeless or (full_known and not missing):
            return
        question = NeedleQuestion(model=self._setup.model, sample=sample, part=part, run=self._run)
        names = [WHOLE, *sorted({arm.prefill for arm in missing} - {WHOLE})]
        for prefill in self._prefiller.read(sample.prompt_ids, names):
            if prefill.name == WHOLE:
                self._keep(question.full(prefill))
                if not self._is_right(sample, FULL_ARM, part):
                    return
            own = [arm for arm in missing if arm.prefill == prefill.name]
            if own:
                self._keep(question.measure(prefill, own))

    def _is_right(self, sample: Sample, arm: Arm, part: str) -> bool:
        fact = self._store.get(_needle_key(sample, arm, part))
        return isinstance(fact, NeedleFact) and fact.right

    def _policies(self, budgets: Sequence[int], *, prefill: str = WHOLE) -> list[Arm]:
        return policy_arms(
            self._setup.sparsity, names=self._settings.policies, budgets=budgets, prefill=prefill
        )

    def _window(self, seed: int, *, steps: int, context: int) -> Text:
        return prose_window(self._setup.tokenizer, context=context, steps=steps, seed=seed)

    def _keep(self, facts: Iterable[Fact]) -> None:
        """Writes what is not known yet: dense comes with every batch."""
        self._store.append([fact for fact in facts if fact.key not in self._store])

    def _is_late(self) -> bool:
        limit = self._settings.max_seconds
        return limit is not None and time.monotonic() - self._started > limit


def _forced_key(text: Text, arm: Arm, part: str) -> tuple[str | int, ...]:
    return (ForcedFact.kind, part, text.name, len(text.prompt_ids), text.seed, *arm.identity)


def _needle_key(sample: Sample, arm: Arm, part: str) -> tuple[str | int | float | None, ...]:
    return (
        NeedleFact.kind, part, sample.task, sample.length, sample.depth, sample.seed, *arm.identity
    )  # fmt: skip
