"""Makes a measured profile of this machine: engines in this process, transfers from elsewhere."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

from decode_service.engine.sizing import CacheSize, size_cache
from loadtest.micro.measure import provenance
from loadtest.micro.plan_points import time_prompts, time_steps
from loadtest.plan.profile import (
    FORMAT,
    FULL,
    Contention,
    DecodePoint,
    KeepRule,
    MeasuredProfile,
    ModelShape,
    Overheads,
    PrefillPoint,
    TransferPoint,
    WorkerLimits,
)
from shared.errors import ConfigError
from shared.model.weights import LoadedModel, load_model
from shared.types.methods import PruningParams


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureSettings:
    """What is timed.

    Raises:
        ConfigError: too little for a profile.
    """

    model: str
    """Catalog name, folder or hub id."""
    device: str
    """PyTorch device."""
    dtype: str
    """Of weights and KV."""
    threads: int
    """Compute threads on a CPU, as the workers have; 0 leaves the library's choice."""
    lengths: tuple[int, ...]
    """Prompt tokens; two or more."""
    keep_rates: tuple[float, ...]
    """Keep rates below 1; unpruned prompts are always timed."""
    batches: tuple[int, ...]
    """Rows of a step; 1 is always timed, and so is `max_batch`."""
    contexts: tuple[int, ...]
    """KV slots of a row; two or more."""
    repeats: int
    """Runs of each prompt, and a fourth of the steps of each batch."""
    max_batch: int
    """Rows of a step that decode workers take."""
    kv_bytes: int
    """Bytes of a decode worker's KV cache."""
    slab_bytes: int
    """Bytes of its landing slab."""

    def __post_init__(self) -> None:
        if min(len(set(self.lengths)), len(set(self.contexts))) < 2:  # noqa: PLR2004
            raise ConfigError(
                "one prompt length or one context makes no line: give two or more of each"
            )
        if min(*self.lengths, *self.contexts, *self.batches, self.repeats, self.max_batch) < 1:
            raise ConfigError("lengths, contexts, batches and repeats are at least 1; raise them")
        if not all(0 < rate < FULL for rate in self.keep_rates):
            raise ConfigError("keep rates to measure are within 0 and 1; 1 is always measured")

    @property
    def all_batches(self) -> list[int]:
        """Ascending; no batch above the workers' own."""
        return sorted({1, self.max_batch, *(b for b in self.batches if b < self.max_batch)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What was measured outside this process."""

    transport: str
    """How KV was moved."""
    seconds_by_bytes: Mapping[int, float]
    """Times of its transfers."""
    overheads: Overheads
    """What a request waits for beside compute."""
    contention: Contention
    """Of both roles on this host."""


def load(settings: MeasureSettings) -> LoadedModel:
    """The model whose engines are timed, computing with as many threads as the settings say.

    Raises:
        TandemError: it cannot be had.
    """
    if settings.threads:
        torch.set_num_threads(settings.threads)
    return load_model(settings.model, dtype=settings.dtype, device=settings.device)


def measure(
    loaded: LoadedModel,
    settings: MeasureSettings,
    surroundings: Surroundings,
    *,
    command: str,
    progress: Callable[[str], None],
) -> MeasuredProfile:
    """Times prompts and steps, and joins them with what is known of the rest.

    Args:
        loaded: the model, from `load`.
        settings: what is timed.
        surroundings: what was measured elsewhere.
        command: of this run.
        progress: is told what happens, one line at a time.

    Raises:
        ConfigError: a size does not fit the model.
    """
    size = size_cache(loaded.model.geometry(), loaded.profile.pruning, kv_bytes=settings.kv_bytes)
    prompts = time_prompts(
        loaded,
        lengths=sorted(set(settings.lengths)),
        keep_rates=sorted({FULL, *settings.keep_rates}, reverse=True),
        repeats=settings.repeats,
        progress=progress,
    )
    steps = time_steps(
        loaded,
        size,
        policies=("dense", "delta"),
        batches=settings.all_batches,
        contexts=sorted(set(settings.contexts)),
        steps=4 * settings.repeats,
        progress=progress,
    )
    return MeasuredProfile(
        format=FORMAT,
        model=_shape(loaded, size),
        pruning=_rule(loaded.profile.pruning),
        prefill=tuple(PrefillPoint(**asdict(each)) for each in prompts),
        decode=tuple(DecodePoint(**asdict(each)) for each in steps),
        transport=surroundings.transport,
        transfer=_transfers(surroundings.seconds_by_bytes),
        overheads=surroundings.overheads,
        contention=surroundings.contention,
        limits=_limits(settings, size),
        origin={**provenance(command=command), "settings": _plain(settings)},
    )


def _shape(loaded: LoadedModel, size: CacheSize) -> ModelShape:
    geometry = loaded.model.geometry()
    return ModelShape(
        name=loaded.name,
        num_layers=geometry.num_layers,
        whole_layers=size.whole_layers,
        token_bytes=geometry.token_bytes,
        max_model_len=loaded.model.config.max_position,
    )


def _rule(pruning: PruningParams) -> KeepRule:
    return KeepRule(
        keep_rate=pruning.keep_rate,
        floor_tokens=max(pruning.min_keep, pruning.observation_window + 1),
        bypass_below=pruning.bypass_below,
    )


def _transfers(seconds_by_bytes: Mapping[int, float]) -> tuple[TransferPoint, ...]:
    return tuple(
        TransferPoint(nbytes=nbytes, seconds=seconds)
        for nbytes, seconds in sorted(seconds_by_bytes.items())
    )


def _limits(settings: MeasureSettings, size: CacheSize) -> WorkerLimits:
    return WorkerLimits(
        max_batch=settings.max_batch,
        pages_front=size.pages_front,
        pages_rest=size.pages_rest,
        slab_bytes=settings.slab_bytes,
    )


def _plain(settings: MeasureSettings) -> dict[str, Any]:
    return {each.name: getattr(settings, each.name) for each in fields(settings)}
