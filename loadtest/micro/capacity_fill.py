"""Fills a worker with equal requests until it is busy, and steps them once."""

import math
import time
from dataclasses import dataclass
from typing import Any

import torch

from decode_service.engine.attention import TorchDecodeAttention
from decode_service.engine.batched.runner import BatchRunner
from decode_service.engine.handoffs import Busy, BusyReason, Reservation
from decode_service.engine.runner import DecodeRunner
from decode_service.engine.sequence import Sequence
from decode_service.engine.sizing import CacheSize
from loadtest.micro.worker_room import RequestSize, WorkerRoom
from shared.errors import ConfigError, InternalError
from shared.kv.geometry import pages_for
from shared.model.transformer import Transformer
from shared.types.methods import SparsityParams


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPlan:
    """Equal prompts and answers."""

    prompt_tokens: int = 32_768
    """Original prompt."""
    max_new_tokens: int = 1024
    """Tokens of an answer, reserved with the prompt."""
    keep_rate: float = 0.2
    """Share of the prompt that pruned layers hold."""

    def __post_init__(self) -> None:
        if min(self.prompt_tokens, self.max_new_tokens) < 1 or not 0 < self.keep_rate < 1:
            raise ConfigError(
                f"prompts of {self.prompt_tokens} tokens, answers of {self.max_new_tokens}, "
                f"{self.keep_rate:g} kept: at least one token each, and a share between 0 and 1"
            )

    @property
    def context(self) -> int:
        """Tokens of a request at its end."""
        return self.prompt_tokens + self.max_new_tokens

    @property
    def whole(self) -> RequestSize:
        """A request that is not pruned."""
        return RequestSize(
            prompt_tokens=self.prompt_tokens,
            kept_tokens=self.prompt_tokens,
            max_new_tokens=self.max_new_tokens,
        )

    @property
    def pruned(self) -> RequestSize:
        """A pruned request; at least one token is kept."""
        return RequestSize(
            prompt_tokens=self.prompt_tokens,
            kept_tokens=max(1, math.floor(self.keep_rate * self.prompt_tokens)),
            max_new_tokens=self.max_new_tokens,
        )

    @property
    def rest_share(self) -> float:
        """Setting of a worker of such prompts alone: both groups of layers are full at once."""
        pruned = self.pruned
        front = pages_for(pruned.prompt_tokens + pruned.growth)
        return pages_for(pruned.kept_tokens + pruned.growth) / front


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """What comes to a worker, without end."""

    size: RequestSize
    """Tokens of each."""
    sparsity: SparsityParams | None
    """Which pages each reads; None: all."""


def fill_worker(model: Transformer, requests: Requests, size: CacheSize) -> dict[str, Any]:
    """Grants requests until there are no pages, fills them, and steps all of them once.

    Args:
        model: the decoder.
        requests: equal ones.
        size: pages of the worker.

    Returns:
        `requests` that were granted, `request_bytes` of one's pages, `held_bytes` of all,
        `pool_bytes` of the worker's pages; pages: `pages_front` and `pages_rest`, of a request
        `request_front` and `request_rest`; `busy`, why no more was granted; `grant_ms` of one
        grant; `step_ms` of one step of all of them; `attended` slots that a row read in it.

    Raises:
        InternalError: something else than pages was missing, or the step's logits are no numbers.
        InvalidRequestError: not even one fits.
    """
    max_model_len = requests.size.prompt_tokens + requests.size.max_new_tokens
    room = WorkerRoom(model, size, max_model_len=max_model_len)
    started = time.perf_counter()
    granted, busy = _grant(room, requests.size)
    grant_ms = (time.perf_counter() - started) * 1000 / len(granted)
    generator = torch.Generator(model.device).manual_seed(4)
    for each in granted:
        room.fill(each, generator=generator)
    rows = [room.row(each, sparsity=requests.sparsity, first_token=2) for each in granted]
    step_ms = _step(model, room, rows, max_model_len=max_model_len)
    pages = granted[0].pages
    found = {
        "requests": len(granted),
        "request_bytes": room.held_bytes(granted[0]),
        "held_bytes": sum(map(room.held_bytes, granted)),
        "pool_bytes": room.pool_bytes,
        "pages_front": size.pages_front,
        "pages_rest": size.pages_rest,
        "request_front": len(pages.front.pages),
        "request_rest": len(pages.rest.pages),
        "busy": busy.reason.value,
        "grant_ms": grant_ms,
        "step_ms": step_ms,
        "attended": rows[0].attended,
    }
    for each in granted:
        room.leave(each)
    room.table.check_integrity()
    room.cache.check_idle()
    return found


def _grant(room: WorkerRoom, size: RequestSize) -> tuple[list[Reservation], Busy]:
    granted: list[Reservation] = []
    while not isinstance(answer := room.ask(f"request-{len(granted)}", size), Busy):
        granted.append(answer)
    if answer.reason is not BusyReason.PAGES_FULL:
        raise InternalError(
            f"after {len(granted)} grants the worker lacks {answer.reason.value}, not pages: the "
            "count says nothing of its memory; report this"
        )
    return granted, answer


def _step(
    model: Transformer, room: WorkerRoom, rows: list[Sequence], *, max_model_len: int
) -> float:
    """Milliseconds of the second of two steps of all rows; the first one captures."""
    by_row = DecodeRunner(model, room.cache, attention=TorchDecodeAttention())
    runner = BatchRunner(
        model, room.cache, by_row=by_row, max_batch=len(rows), max_tokens=max_model_len
    )
    computed = runner.compute(rows)
    if not bool(computed.output.logits_BV[: len(rows)].isfinite().all()):
        raise InternalError("a step of granted rows gave logits that are no numbers; report this")
    started = time.perf_counter()
    runner.step(rows)
    return (time.perf_counter() - started) * 1000
