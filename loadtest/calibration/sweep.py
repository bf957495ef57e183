"""The sweep of a calibration: three measures of every depth, and the choice.

How well the pruning score agrees with the answer-informed oracle, whether the kept tokens hold the
needle, and whether the answer stays as it was.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from loadtest.calibration.answers import Target, measure_agreement
from loadtest.calibration.choice import (
    Candidate,
    allowed_depths,
    best_of,
    candidates_at,
)
from loadtest.calibration.profile import Calibration, Variant
from loadtest.calibration.samples import fitting_lengths, generated_samples, read_samples
from loadtest.calibration.settings import CalibrationSettings
from loadtest.quality.answer import generate
from loadtest.quality.collapse import collapsed_layers
from loadtest.quality.depth_grid import GridScores, mean_scores, score_grid
from loadtest.quality.oracle import ask_prompt, oracle_scores
from loadtest.quality.tasks.prompt import PromptWriter
from loadtest.quality.tasks.sample import Sample
from prefill_service.engine.evaluate import rank_and_prefill
from shared.errors import ConfigError
from shared.model.attention import PrefillAttention
from shared.model.probe import probe_attention
from shared.model.profile import base_profile
from shared.model.transformer import Transformer
from shared.model.weights import LoadedModel
from shared.tokenizer.tokenizer import Tokenizer
from shared.types.methods import Aggregation, PruningParams

Progress = Callable[[str, int, int], None]
"""Told what is being done, how many prompts are done, and how many there are."""

_PAPER_DEFERRED = 4
_REFINED = 6
"""Rankings of the chosen depth whose answers are checked as well."""


def calibrate(
    loaded: LoadedModel, *, settings: CalibrationSettings, progress: Progress
) -> Calibration:
    """Measures and chooses.

    Values that are not calibrated come from the shipped profile of the model's shape, or from the
    papers where there is none; never from an earlier calibration, so that repeating gives the same.

    Args:
        loaded: the model, in the dtype and on the device asked for.
        settings: what to do.
        progress: told about every prompt.

    Raises:
        ConfigError: a prompt cannot be pruned, or no depth saves enough.
    """
    base = base_profile(loaded.model.config)
    params = settings.pruning_over(base.pruning)
    num_layers = loaded.model.config.num_layers
    allowed = allowed_depths(
        num_layers=num_layers, keep_rate=params.keep_rate, saving_target=settings.saving_target
    )
    sweep = _Sweep(
        loaded.model,
        attention=probe_attention(loaded.model.device).backend,
        params=params,
        settings=settings,
        progress=progress,
    )
    samples = _samples(loaded, settings=settings, params=params)
    scores, targets = sweep.observe(samples)
    single_rho, single_coverage = _single_layers(scores, settings)
    collapsed = collapsed_layers(single_rho, single_coverage)
    ranked = [
        candidates_at(depth, scores=scores, grid=settings.grid, collapsed=collapsed)
        for depth in range(num_layers - 1)
    ]
    tried = [(best, min(_PAPER_DEFERRED, depth + 1)) for depth, (best, *_) in enumerate(ranked)]
    depths = sweep.answers(targets, tried, title="depths")
    pick = _best(depths[: len(allowed)]).candidate.pruning_layer
    deferred = [count for count in settings.deferred if count <= pick + 1]
    tried = list(product(ranked[pick][:_REFINED], deferred))
    refined = sweep.answers(targets, tried, title="windows and deferred layers")
    return Calibration(
        settings=settings,
        base=base,
        num_samples=len(samples),
        num_right=sum(target.right is True for target in targets),
        single_rho=single_rho,
        single_coverage=single_coverage,
        collapsed=collapsed,
        depths=depths,
        refined=refined,
        chosen=_best(refined),
    )


@dataclass(frozen=True, slots=True)
class _Sweep:
    """The passes over all prompts."""

    model: Transformer
    attention: PrefillAttention
    params: PruningParams
    settings: CalibrationSettings
    progress: Progress

    def observe(self, samples: Sequence[Sample]) -> tuple[GridScores, list[Target]]:
        """Reads every prompt in full: its answer, and the scores of the whole grid."""
        scores, targets = [], []
        for done, sample in enumerate(samples, start=1):
            one, target = self._observe_one(sample)
            scores.append(one)
            targets.append(target)
            self.progress("scores", done, len(samples))
        return mean_scores(scores), targets

    def answers(
        self, targets: Sequence[Target], tried: Sequence[tuple[Candidate, int]], *, title: str
    ) -> list[Variant]:
        """Reads every prompt under every pair of a ranking and m."""
        agreements = measure_agreement(
            self.model,
            attention=self.attention,
            targets=targets,
            variants=[self._variant(candidate, deferred) for candidate, deferred in tried],
            progress=lambda done: self.progress(title, done, len(targets)),
        )
        return [
            Variant(candidate=candidate, deferred_layers=deferred, agreement=agreement)
            for (candidate, deferred), agreement in zip(tried, agreements, strict=True)
        ]

    def _observe_one(self, sample: Sample) -> tuple[GridScores, Target]:
        full = rank_and_prefill(
            self.model,
            attention=self.attention,
            token_ids=sample.prompt_ids,
            params=replace(self.params, keep_rate=1.0),
        )
        greedy_ids = generate(
            self.model,
            full,
            max_tokens=sample.max_new_tokens,
            stop_ids=self.model.config.eos_token_ids,
        )
        asked = ask_prompt(
            self.model,
            full,
            token_ids=sample.prompt_ids,
            answer_ids=greedy_ids,
            window=max(self.settings.grid.windows),
        )
        scores = score_grid(
            asked,
            oracle_scores(asked, self.settings.oracle),
            needles=sample.needle_spans,
            grid=self.settings.grid,
            params=self.params,
        )
        return scores, Target.of(self.model, full, sample=sample, greedy_ids=greedy_ids)

    def _variant(self, candidate: Candidate, deferred: int) -> PruningParams:
        return replace(
            self.params,
            pruning_layer=candidate.pruning_layer,
            aggregation_window=candidate.layer_count,
            observation_window=candidate.window,
            pool_kernel=candidate.pool,
            aggregation=candidate.aggregation,
            deferred_layers=deferred,
        )


def _samples(
    loaded: LoadedModel, *, settings: CalibrationSettings, params: PruningParams
) -> list[Sample]:
    """The prompts, each long enough to be pruned and short enough for the model."""
    writer = PromptWriter(Tokenizer.from_folder(loaded.folder))
    limit = loaded.model.config.max_position
    samples: list[Sample] = []
    if settings.samples:
        lengths = settings.lengths or fitting_lengths(limit)
        samples += generated_samples(
            writer, count=settings.samples, lengths=lengths, seed=settings.seed
        )
    if settings.prompts is not None:
        samples += read_samples(writer, settings.prompts)
    widest = replace(params, observation_window=max(settings.grid.windows))
    for sample in samples:
        tokens = len(sample.prompt_ids)
        if tokens + sample.max_new_tokens > limit or widest.kept_count(tokens) >= tokens:
            raise ConfigError(
                f"calibration: a prompt of {tokens} tokens ({sample.task}, number {sample.seed}) "
                f"cannot be used: with its answer it must fit the context of {limit}, and more "
                f"than {widest.kept_count(tokens)} tokens are needed for any to be dropped; "
                "change --lengths, --keep or the prompts"
            )
    return samples


def _single_layers(
    scores: GridScores, settings: CalibrationSettings
) -> tuple[list[float], list[float] | None]:
    """Rho and coverage of each layer alone: narrowest window and pool, heads added."""
    form = settings.grid.aggregations.index(Aggregation.SUM_MAX)
    place = (0, 0, form, settings.grid.layer_counts.index(1))
    coverage = scores.coverage_WPAMY
    return (
        scores.rho_WPAMY[place].tolist(),
        None if coverage is None else coverage[place].tolist(),
    )


def _best(variants: Sequence[Variant]) -> Variant:
    place = best_of([v.candidate for v in variants], [v.agreement for v in variants])
    return variants[place]
