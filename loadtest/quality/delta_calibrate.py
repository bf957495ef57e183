"""Calibrates Δ-layers: records full attention in decode steps, draws both curves, chooses.

Shapes: Y layers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from loadtest.quality.calibrate_samples import read_samples
from loadtest.quality.calibrate_settings import CalibrationSettings
from loadtest.quality.delta_attention import record_steps, spread_steps
from loadtest.quality.delta_choice import (
    check_count,
    layers_by_recall,
    layers_by_shift,
    neighbours,
)
from loadtest.quality.delta_curves import LayerCurves, mean_curves, step_curves
from loadtest.quality.delta_measure import (
    WHOLE,
    Closeness,
    FullLayers,
    measure_sets,
    tail_of,
)
from loadtest.quality.delta_samples import (
    DELTA_LENGTHS,
    LONGEST_TAIL,
    DeltaSample,
    generated_delta_samples,
    own_delta_samples,
)
from loadtest.quality.delta_settings import DeltaSettings
from loadtest.quality.tail import PromptKv
from loadtest.quality.tasks.prompt import PromptWriter
from prefill_service.engine.evaluate import rank_and_prefill
from shared.errors import ConfigError
from shared.kv.geometry import PAGE_SIZE
from shared.model.attention import PrefillAttention
from shared.model.probe import probe_attention
from shared.model.profile import base_profile
from shared.model.transformer import Transformer
from shared.model.weights import LoadedModel
from shared.tokenizer.tokenizer import Tokenizer
from shared.types.methods import SparsityParams

Progress = Callable[[str, int, int], None]
"""Told what is being done, how many samples are done, and how many there are."""
STAGE = "Δ-layers"
BY_RECALL, BY_LOW_RECALL, BY_WEIGHTED_RECALL = "recall", "low_recall", "weighted_recall"
BY_SHIFT, SHIPPED, REFINED = "shift", "shipped", "refined"
"""Rules: highest mean recall, highest 10th percentile, highest mean with layers weighted by how
much they turn the stream, the paper's peaks of the shift; the base profile's set; a refinement."""
KL_DIGITS = 5
"""Sets whose KL is equal to this many decimals are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaCandidate:
    """A set of full layers, and how it fares."""

    rule: str
    """What proposes it."""
    full_layers: FullLayers
    """Ascending."""
    closeness: Closeness | None
    """Decoding with it; None when recall alone decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaCalibration:
    """What was measured, and what was chosen."""

    params: SparsityParams
    """Of the choice: K and L are its; its full layers are those of the profile it began from."""
    num_samples: int
    """Samples."""
    num_steps: int
    """Decode steps recorded, of all samples."""
    curves: LayerCurves
    """Means over samples."""
    candidates: Sequence[DeltaCandidate]
    """One a rule, in the order of preference among equals; then those of the refinement."""

    @property
    def best(self) -> DeltaCandidate:
        """The closest to dense; the first where none was decoded with."""
        return min(
            self.candidates,
            key=lambda one: 0.0 if one.closeness is None else _kl(one),
        )

    @property
    def chosen(self) -> SparsityParams:
        """What the profile takes."""
        return replace(self.params, full_layers=self.best.full_layers)

    def of_rule(self, rule: str) -> DeltaCandidate:
        """The set that a rule proposes."""
        return next(one for one in self.candidates if one.rule == rule)


def delta_samples(
    loaded: LoadedModel, *, settings: CalibrationSettings, params: SparsityParams
) -> list[DeltaSample]:
    """The samples of a calibration, made and checked before anything is run.

    Lengths and own prompts that do not exceed K pages are left out: nothing is chosen there.

    Args:
        loaded: the model.
        settings: of the calibration.
        params: K.

    Raises:
        ConfigError: the full layers cannot be chosen, or no sample is left that fits the model.
    """
    check_count(settings.delta.full_layers, num_layers=loaded.model.config.num_layers)
    writer = PromptWriter(Tokenizer.from_folder(loaded.folder))
    limit = loaded.model.config.max_position
    least = params.page_budget * PAGE_SIZE
    lengths = [
        length
        for length in settings.lengths or DELTA_LENGTHS
        if least < length <= limit - LONGEST_TAIL
    ]
    samples: list[DeltaSample] = []
    if lengths:
        samples = generated_delta_samples(
            writer, count=settings.delta.samples, lengths=lengths, seed=settings.seed
        )
    if settings.prompts is not None:
        samples += own_delta_samples(read_samples(writer, settings.prompts))
    fitting = [s for s in samples if least < len(s.prompt_ids) <= limit - LONGEST_TAIL]
    if not fitting:
        raise ConfigError(
            f"calibration: no sample can show how pages are chosen: one must be longer than the "
            f"{params.page_budget} pages of the budget ({least} tokens) and fit the context of "
            f"{limit} with {LONGEST_TAIL} more; change --lengths, --page-budget or the prompts, or "
            "leave the Δ-layers as they are with --delta-samples 0"
        )
    return fitting


def calibrate_delta(
    loaded: LoadedModel,
    samples: Sequence[DeltaSample],
    *,
    settings: CalibrationSettings,
    params: SparsityParams,
    progress: Progress,
) -> DeltaCalibration:
    """Measures and chooses.

    Args:
        loaded: the model.
        samples: of `delta_samples`, at least one.
        settings: of the calibration.
        params: K and L of the choice.
        progress: told about every sample.

    Raises:
        ConfigError: the model answers every prompt with nothing.
    """
    attention = probe_attention(loaded.model.device).backend
    found: list[list[LayerCurves]] = []
    for done, sample in enumerate(samples, start=1):
        own = _sample_curves(
            loaded.model, sample, attention=attention, steps=settings.delta.steps, params=params
        )
        if own:
            found.append(own)
        progress(STAGE, done, len(samples))
    if not found:
        raise ConfigError(
            "calibration: the model ends every answer before its first token, so there is no "
            "decode step to look at; give other prompts or generated samples"
        )
    curves = mean_curves(found)
    candidates = _rules(loaded, curves, settings=settings)
    if settings.delta.kl_samples:
        decoding = _Decoding(
            loaded.model,
            samples=samples[: settings.delta.kl_samples],
            settings=settings.delta,
            params=params,
            progress=progress,
        )
        candidates = decoding.refined(decoding.measured(candidates))
    return DeltaCalibration(
        params=params,
        num_samples=len(found),
        num_steps=sum(map(len, found)),
        curves=curves,
        candidates=candidates,
    )


def _rules(
    loaded: LoadedModel, curves: LayerCurves, *, settings: CalibrationSettings
) -> list[DeltaCandidate]:
    """One set a rule; the shipped one is that of the base profile."""
    count, turn = settings.delta.full_layers, curves.turn_Y.tolist()
    recall, low = curves.recall_YY.tolist(), curves.recall_low_YY.tolist()
    sets = {
        BY_RECALL: layers_by_recall(recall, [1.0] * len(turn), count=count),
        BY_LOW_RECALL: layers_by_recall(low, [1.0] * len(turn), count=count),
        BY_WEIGHTED_RECALL: layers_by_recall(recall, turn, count=count),
        BY_SHIFT: layers_by_shift(curves.shift_Y.tolist(), count=count),
    }
    shipped = base_profile(loaded.model.config).sparsity.full_layers
    if len(shipped) == count:
        sets[SHIPPED] = shipped
    return [
        DeltaCandidate(rule=rule, full_layers=layers, closeness=None)
        for rule, layers in sets.items()
    ]


@dataclass(frozen=True, slots=True)
class _Decoding:
    """Decodes with sets of full layers."""

    model: Transformer
    samples: Sequence[DeltaSample]
    settings: DeltaSettings
    params: SparsityParams
    progress: Progress

    def measured(
        self, candidates: Sequence[DeltaCandidate], *, title: str = "sets of full layers"
    ) -> list[DeltaCandidate]:
        """The same with their closeness; equal sets are run once.

        Raises:
            ConfigError: no sample goes on for two tokens.
        """
        sets = list(dict.fromkeys(one.full_layers for one in candidates))
        found = measure_sets(
            self.model,
            self.samples,
            sets,
            params=self.params,
            steps=self.settings.kl_steps,
            progress=lambda done: self.progress(title, done, len(self.samples)),
        )
        if not found:
            raise ConfigError(
                "calibration: no answer of the KL samples has two tokens, so that sets of full "
                "layers cannot be compared; give generated samples, or --kl-samples 0"
            )
        closeness = dict(zip(sets, found, strict=True))
        return [replace(one, closeness=closeness[one.full_layers]) for one in candidates]

    def refined(self, candidates: list[DeltaCandidate]) -> list[DeltaCandidate]:
        """And the neighbours of the best, then of the best of those, while they are closer."""
        known = list(candidates)
        for number in range(1, self.settings.refine + 1):
            best = min(known, key=_kl)
            tried = {one.full_layers for one in known}
            moved = [
                DeltaCandidate(rule=f"{REFINED}_{number}", full_layers=layers, closeness=None)
                for layers in neighbours(best.full_layers, num_layers=len(self.model.layers))
                if layers not in tried
            ]
            if not moved:
                break
            closest = min(self.measured(moved, title=f"refinement {number}"), key=_kl)
            if _kl(closest) >= _kl(best):
                break
            known.append(closest)
        return known


def _kl(candidate: DeltaCandidate) -> float:
    assert candidate.closeness is not None, "only measured sets are compared"
    return round(candidate.closeness.kl, KL_DIGITS)


def _sample_curves(
    model: Transformer,
    sample: DeltaSample,
    *,
    attention: PrefillAttention,
    steps: int,
    params: SparsityParams,
) -> list[LayerCurves]:
    """Curves of a sample's recorded steps; none where the model's answer is empty."""
    full = rank_and_prefill(model, attention=attention, token_ids=sample.prompt_ids, params=WHOLE)
    tail_ids = tail_of(model, full, sample)
    if not tail_ids:
        return []
    recorded = record_steps(
        model,
        PromptKv.of(full),
        tail_ids=tail_ids,
        steps=spread_steps(len(tail_ids), count=steps),
    )
    return [
        step_curves(step, page_budget=params.page_budget, recency_pages=params.recency_pages)
        for step in recorded
    ]
