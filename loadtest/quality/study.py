"""The parts of an evaluation: which prompts, under which arms; results are written as they come.

Every part skips what the results folder already holds, so a study that was stopped goes on.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from loadtest.evaluation import Progress
from loadtest.quality.arms import (
    Arm,
    ablation_arms,
    full_arm,
    profile_arms,
    ranker_arms,
    ranker_names,
)
from loadtest.quality.layers import ORACLES, SINGLE, correlation_curves
from loadtest.quality.ledger import Ledger
from loadtest.quality.runner import RIGHT, Evaluator, Setup
from loadtest.quality.settings import StudySettings
from loadtest.quality.store import CorrelationCurve, Key, ResultStore, Timing
from loadtest.quality.summary import LONG_PROMPT
from loadtest.quality.tasks.longbench import LongBenchFolder
from loadtest.quality.tasks.needle import NEEDLE_TASKS, needle_grid, needle_mixture, needle_sample
from loadtest.quality.tasks.prompt import PromptWriter
from loadtest.quality.tasks.ruler import RULER_TASKS, ruler_samples
from loadtest.quality.tasks.sample import Protocol, Sample
from loadtest.quality.timing import time_arms

GRID_TASKS = ("niah_noise_1key", "niah_prose_1key")
"""Tasks of the needle grid; the mixture also asks for one key of four."""
_GROUP = {"cuda": 4, "cpu": 1}
"""Prompts that are read and answered together, on each kind of device."""

MIXTURE_SEED = 10_000
"""First round of the mixture that is evaluated, far from those that a calibration has seen."""


class Study:
    """Runs parts of an evaluation on one model.

    Args:
        setup: the model.
        settings: what to run.
        store: where results go; what it holds is not measured again.
        run: number of this run in the store.
        progress: is told how far it is.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        settings: StudySettings,
        store: ResultStore,
        run: int,
        progress: Progress,
    ) -> None:
        self._setup = setup
        self._settings = settings
        self._store = store
        self._run = run
        self._progress = progress
        self._writer = PromptWriter(setup.tokenizer)
        self._started = time.monotonic()
        names = settings.rankers or tuple(ranker_names())
        self._arms = ranker_arms(setup.base, names=names, rates=settings.keep)

    def run(self) -> bool:
        """Runs the chosen parts in order; False when the time was up before the end."""
        parts: dict[str, Callable[[], bool]] = {
            "timing": self._timing,
            "mixture": self._mixture,
            "needle": self._needle,
            "ruler": self._ruler,
            "ablation": self._ablation,
            "correlation": self._correlation,
            "longbench": self._longbench,
        }
        return all(run() for name, run in parts.items() if name in self._settings.parts)

    def _timing(self) -> bool:
        lengths = self._settings.timing_lengths
        for done, length in enumerate(lengths, start=1):
            if self._is_late():
                return False
            sample = needle_sample(
                self._writer, task="niah_prose_1key", length=length, depth=0.5, seed=0
            )
            keys = [
                (Timing.kind, len(sample.prompt_ids), arm.name, arm.rate)
                for arm in self._arms
                if not arm.needs_oracle
            ]
            if any(key not in self._store for key in keys):
                self._store.append(
                    time_arms(
                        self._setup,
                        self._arms,
                        token_ids=sample.prompt_ids,
                        repeats=self._settings.timing_repeats,
                        run=self._run,
                    )
                )
            self._progress("timing", done=done, total=len(lengths))
        return True

    def _mixture(self) -> bool:
        settings = self._settings
        served = profile_arms(self._setup.base, floors=settings.floors)
        return self._answered(
            "mixture",
            arms=[*self._arms, *served],
            lengths=settings.mixture_lengths,
            wanted=settings.mixture_answers,
        )

    def _ablation(self) -> bool:
        return self._answered(
            "ablation",
            arms=ablation_arms(self._setup.base, num_layers=self._setup.model.config.num_layers),
            lengths=self._settings.ablation_lengths,
            wanted=self._settings.ablation_answers,
        )

    def _needle(self) -> bool:
        settings = self._settings
        cells = len(GRID_TASKS) * len(settings.lengths) * len(settings.depths) * settings.seeds
        return self._all_of(
            "needle",
            lambda: needle_grid(
                self._writer,
                tasks=GRID_TASKS,
                lengths=settings.lengths,
                depths=settings.depths,
                seeds=range(settings.seeds),
            ),
            total=cells,
            word_for_word=True,
        )

    def _ruler(self) -> bool:
        settings = self._settings
        return self._all_of(
            "ruler",
            lambda: self._ruler_samples(settings.ruler_samples),
            total=len(RULER_TASKS) * settings.ruler_samples,
            word_for_word=False,
        )

    def _longbench(self) -> bool:
        settings = self._settings
        assert settings.longbench is not None, "the settings were checked"
        folder = LongBenchFolder.open(settings.longbench)
        limit = settings.longbench_tokens or self._setup.model.config.max_position - 512
        samples = folder.samples(
            self._writer, max_prompt_tokens=limit, per_task=settings.longbench_samples
        )
        known = list(samples)
        return self._all_of("longbench", lambda: iter(known), total=len(known), word_for_word=False)

    def _correlation(self) -> bool:
        per_task = self._settings.correlation_samples
        evaluator = Evaluator(self._setup, word_for_word=False)
        total = self._settings.shard.part_of(per_task * (len(RULER_TASKS) + len(NEEDLE_TASKS)))
        done = 0
        for group in self._groups(self._correlation_samples(per_task)):
            if self._is_late():
                return False
            pending = [sample for sample in group if _curve_key(sample) not in self._store]
            for full in evaluator.read_full(pending):
                self._store.append(correlation_curves(self._setup, full, run=self._run))
            done += len(group)
            self._progress("correlation", done=done, total=total)
        return True

    def _correlation_samples(self, per_task: int) -> Iterator[Sample]:
        yield from needle_grid(
            self._writer,
            lengths=[self._settings.ruler_length],
            depths=[0.5],
            seeds=range(per_task),
        )
        yield from self._ruler_samples(per_task)

    def _ruler_samples(self, per_task: int) -> Iterator[Sample]:
        return ruler_samples(
            self._writer, lengths=[self._settings.ruler_length], seeds=range(per_task)
        )

    def _all_of(
        self,
        part: str,
        samples: Callable[[], Iterator[Sample]],
        *,
        total: int,
        word_for_word: bool,
    ) -> bool:
        """Every sample under every arm, whatever full answers."""
        evaluator = Evaluator(self._setup, word_for_word=word_for_word)
        done, total = 0, self._settings.shard.part_of(total) * len(self._settings.protocols)
        for protocol in self._settings.protocols:
            ledger = self._ledger(part, protocol)
            for group in self._groups(samples()):
                if self._is_late():
                    return False
                self._measure(
                    group, self._arms, ledger=ledger, evaluator=evaluator, only_answered=False
                )
                done += len(group)
                self._progress(part, done=done, total=total)
        return True

    def _answered(
        self, part: str, *, arms: Sequence[Arm], lengths: Sequence[int], wanted: int
    ) -> bool:
        """Prompts of the mixture that full answers, until there are enough long ones."""
        evaluator = Evaluator(self._setup, word_for_word=True)
        ledger, full = self._ledger(part), full_arm(self._setup.base)
        counted, done = min(LONG_PROMPT, max(lengths)), 0
        candidates = needle_mixture(
            self._writer,
            count=self._settings.mixture_prompts,
            lengths=lengths,
            seed=MIXTURE_SEED,
        )
        wanted = self._settings.shard.part_of(wanted)
        for group in self._groups(candidates):
            if done >= wanted:
                break
            if self._is_late():
                return False
            self._measure(group, arms, ledger=ledger, evaluator=evaluator, only_answered=True)
            done += sum(
                sample.length >= counted and (ledger.score(sample, full) or 0.0) >= RIGHT
                for sample in group
            )
            self._progress(part, done=min(done, wanted), total=wanted)
        return True

    def _measure(
        self,
        samples: Sequence[Sample],
        arms: Sequence[Arm],
        *,
        ledger: Ledger,
        evaluator: Evaluator,
        only_answered: bool,
    ) -> None:
        """Measures what is missing of some samples; of `only_answered`, if full answers them."""
        full = full_arm(self._setup.base)

        def is_open(sample: Sample) -> bool:
            score = ledger.score(sample, full)
            hopeless = only_answered and score is not None and score < RIGHT
            return not hopeless and bool(ledger.missing(sample, [full, *arms]))

        fulls = evaluator.read_full([sample for sample in samples if is_open(sample)])
        new = [read for read in fulls if ledger.missing(read.sample, [full])]
        self._store.append([ledger.full_trial(read, full) for read in new])
        chosen = [read for read in fulls if read.score >= RIGHT or not only_answered]
        missing = [ledger.missing(read.sample, arms) for read in chosen]
        found = evaluator.measure(chosen, missing, protocol=ledger.protocol)
        self._store.append(
            ledger.trial(read.sample, outcome)
            for read, outcomes in zip(chosen, found, strict=True)
            for outcome in outcomes
        )

    def _ledger(self, part: str, protocol: Protocol = Protocol.QUESTION_INCLUDED) -> Ledger:
        return Ledger(store=self._store, part=part, protocol=protocol, run=self._run)

    def _groups(self, samples: Iterable[Sample]) -> Iterator[list[Sample]]:
        """This shard's samples in groups that the device takes at once; the last may be smaller."""
        own = self._settings.shard.own(samples)
        while group := list(islice(own, _GROUP[self._setup.model.device.type])):
            yield group

    def _is_late(self) -> bool:
        limit = self._settings.max_seconds
        return limit is not None and time.monotonic() - self._started > limit


def _curve_key(sample: Sample) -> Key:
    """The key of a sample's first curve; all are written together."""
    return (
        CorrelationCurve.kind,
        sample.task,
        sample.length,
        sample.seed,
        next(iter(ORACLES)),
        SINGLE,
    )
