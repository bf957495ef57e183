"""How much longer one role takes while the other computes in another process of this machine."""

import multiprocessing
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.synchronize import Event

import torch

from decode_service.engine.sizing import size_cache
from loadtest.micro.plan_points import time_prompts, time_steps
from shared.errors import InternalError
from shared.model.weights import LoadedModel, load_model

_START_S = 120.0
_STOP_S = 60.0
_BACKGROUND_STEPS = 32


class Role(StrEnum):
    """Who computes."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentionWork:
    """What both roles compute while they are compared."""

    model: str
    """Catalog name, folder or hub id."""
    device: str
    """PyTorch device."""
    dtype: str
    """Of weights and KV."""
    threads: int
    """Compute threads of each; 0 leaves the library's choice."""
    tokens: int
    """Length of the prompts."""
    batch: int
    """Rows of the steps."""
    context: int
    """KV slots of a row."""
    kv_bytes: int
    """Bytes of the cache."""
    repeats: int
    """Pairs of times, alone and in company."""


def time_contention(work: ContentionWork, *, progress: Callable[[str], None]) -> dict[Role, float]:
    """Ratio of both roles' times in company to those alone, at least 1; medians.

    Raises:
        InternalError: the other process ended.
    """
    loaded = _load(work)
    found = {}
    for role, other in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
        alone = _timed(role, loaded, work)
        with _company(other, work):
            beside = _timed(role, loaded, work)
        found[role] = max(1.0, beside / alone)
        progress(f"{role} beside {other}: {found[role]:.2f} times its time alone")
    return found


def _timed(role: Role, loaded: LoadedModel, work: ContentionWork) -> float:
    return statistics.median(
        _once(role, loaded, work, steps=_BACKGROUND_STEPS) for _ in range(work.repeats)
    )


def _once(role: Role, loaded: LoadedModel, work: ContentionWork, *, steps: int) -> float:
    if role is Role.PREFILL:
        (prompt,) = time_prompts(
            loaded, lengths=[work.tokens], keep_rates=[1.0], repeats=1, progress=_quiet
        )
        return prompt.seconds
    size = size_cache(loaded.model.geometry(), loaded.profile.pruning, kv_bytes=work.kv_bytes)
    (step,) = time_steps(
        loaded,
        size,
        policies=["dense"],
        batches=[work.batch],
        contexts=[work.context],
        steps=steps,
        progress=_quiet,
    )
    return step.seconds


@contextmanager
def _company(role: Role, work: ContentionWork) -> Iterator[None]:
    """The other role in a process of its own, from its first result to the end of the block."""
    context = multiprocessing.get_context("spawn")
    warm, stop = context.Event(), context.Event()
    process = context.Process(target=_compute, args=(role, work, warm, stop), daemon=True)
    process.start()
    try:
        if not warm.wait(_START_S):
            raise InternalError(
                f"the {role} process beside the measurement gave no result in {_START_S:g} s: it "
                "ended or hangs; see what it wrote above"
            )
        yield
    finally:
        stop.set()
        process.join(_STOP_S)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()


def _compute(role: Role, work: ContentionWork, warm: Event, stop: Event) -> None:
    loaded = _load(work)
    while not stop.is_set():
        _once(role, loaded, work, steps=_BACKGROUND_STEPS)
        warm.set()


def _load(work: ContentionWork) -> LoadedModel:
    if work.threads:
        torch.set_num_threads(work.threads)
    return load_model(work.model, dtype=work.dtype, device=work.device)


def _quiet(_: str) -> None:
    """Nobody wants to read of the single times."""
