"""Calibrates Δ-layers: records full attention in decode steps, draws both curves, chooses.

Shapes: Y layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadtest.calibration.delta_attention import record_steps, spread_steps
from loadtest.calibration.delta_candidates import (
    DeltaCandidate,
    Progress,
    SetDecoding,
    proposed,
    rounded_kl,
)
from loadtest.calibration.delta_choice import check_count
from loadtest.calibration.delta_curves import LayerCurves, mean_curves, step_curves
from loadtest.calibration.delta_measure import WHOLE, tail_of
from loadtest.calibration.delta_samples import (
    DELTA_LENGTHS,
    LONGEST_TAIL,
    DeltaSample,
    generated_delta_samples,
    own_delta_samples,
)
from loadtest.calibration.samples import read_samples
from loadtest.calibration.settings import CalibrationSettings
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

STAGE = "Δ-layers"


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
            key=lambda one: 0.0 if one.closeness is None else rounded_kl(one),
        )

    @property
    def chosen(self) -> SparsityParams:
        """What the profile takes."""
        return replace(self.params, full_layers=self.best.full_layers)


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
    candidates = proposed(
        curves,
        count=settings.delta.full_layers,
        shipped=base_profile(loaded.model.config).sparsity.full_layers,
    )
    if settings.delta.kl_samples:
        decoding = SetDecoding(
            model=loaded.model,
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
