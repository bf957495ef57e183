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
from loadtest.micro.plan_points import filled_rows, one_batch, one_prompt
from loadtest.micro.prompt import real_prompt
from shared.errors import InternalError
from shared.model.weights import LoadedModel, load_model

_START_S = 120.0
_STOP_S = 60.0
_STEPS = 32


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


def time_contention(
    loaded: LoadedModel, work: ContentionWork, *, progress: Callable[[str], None]
) -> dict[Role, float]:
    """Ratio of both roles' times in company to those alone, at least 1; medians.

    Args:
        loaded: the model of the work in this process; the other one loads its own.
        work: what both compute.
        progress: is told what happens, one line at a time.

    Raises:
        InternalError: the other process ended.
    """
    found = {}
    for role, other in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
        once = _prepared(role, loaded, work)
        once()  # warms up
        alone = _timed(once, work.repeats)
        with _company(other, work):
            beside = _timed(once, work.repeats)
        found[role] = max(1.0, beside / alone)
        progress(f"{role} beside {other}: {found[role]:.2f} times its time alone")
    return found


def _timed(once: Callable[[], float], repeats: int) -> float:
    return statistics.median(once() for _ in range(repeats))


def _prepared(role: Role, loaded: LoadedModel, work: ContentionWork) -> Callable[[], float]:
    """Computes as the role does, and nothing else: prompt and cache were made before.

    Company that tokenizes or fills a cache meanwhile is not that role's.
    """
    if role is Role.PREFILL:
        token_ids = real_prompt(loaded, tokens=work.tokens)
        return lambda: one_prompt(loaded, token_ids, 1.0)[0]
    size = size_cache(loaded.model.geometry(), loaded.profile.pruning, kv_bytes=work.kv_bytes)
    cache, pages = filled_rows(loaded, size, context=work.context, batch=work.batch, steps=_STEPS)
    return lambda: one_batch(
        loaded, cache, pages, context=work.context, policy="dense", steps=_STEPS
    )


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
    once = _prepared(role, _load(work), work)
    while not stop.is_set():
        once()
        warm.set()


def _load(work: ContentionWork) -> LoadedModel:
    if work.threads:
        torch.set_num_threads(work.threads)
    return load_model(work.model, dtype=work.dtype, device=work.device)
