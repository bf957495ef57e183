"""Chooses how a step is computed, and says why each of the other ways was not.

Two are there: `torch`, row by row, on any device and for every policy; and `triton`, whole batches
by kernels, for the rows of `batched/row_plan.py`. With the second the first serves the rest.
"""

import importlib.util
from dataclasses import dataclass

from decode_service.engine.attention import TorchDecodeAttention
from decode_service.engine.kv_cache import PagedKvCache
from decode_service.engine.runner import DecodeRunner, ServingRunner
from shared.errors import ConfigError
from shared.model.probe import AUTO, Rejection
from shared.model.rope_config import RopeKind
from shared.model.transformer import Transformer

TRITON = "triton"
HEAD_SIZES = (16, 32, 64, 128, 256)
"""Head sizes of the attention kernel."""
MOST_TOKENS = 262_144
"""Longest row whose pages the selection ranks."""

_OTHERS = ("flashinfer", "flash_attn")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeBackend:
    """Outcome of the probe; health, banner and log show it."""

    name: str
    """What computes steps."""
    rejected: tuple[Rejection, ...]
    """Every other known backend that could be faster, with the reason."""

    @property
    def rejections(self) -> tuple[str, ...]:
        """`name: reason` of each."""
        return tuple(f"{each.name}: {each.reason}" for each in self.rejected)

    def log_facts(self) -> dict[str, str]:
        """What a start-up line says of it."""
        by_torch = "rows of other policies by torch"
        return {
            "attention": self.name,
            "attention_serves": f"dense, delta; {by_torch}" if self.name == TRITON else "all rows",
            "attention_rejected": "; ".join(self.rejections),
        }


def probe_decode(model: Transformer, *, max_tokens: int, requested: str = AUTO) -> DecodeBackend:
    """Picks the backend for a model where it is.

    Args:
        model: the decoder.
        max_tokens: longest context of a row.
        requested: `auto`, or a backend by name.

    Raises:
        ConfigError: a backend was asked for by name that is unknown or cannot run here.
    """
    reason = _against_triton(model, max_tokens=max_tokens)
    others = tuple(Rejection(name, "no decode kernel of it is used yet") for name in _OTHERS)
    refusals = {each.name: each.reason for each in others}
    if reason:
        refusals[TRITON] = reason
    if requested in refusals:
        raise ConfigError(
            f"attention backend {requested!r} cannot run here: {refusals[requested]}; "
            f"use {AUTO!r} or {TorchDecodeAttention.name!r}"
        )
    if requested not in {AUTO, TRITON, TorchDecodeAttention.name}:
        raise ConfigError(
            f"attention backend {requested!r} is unknown: choose {AUTO}, {TRITON} or "
            f"{TorchDecodeAttention.name}"
        )
    if reason or requested == TorchDecodeAttention.name:
        against = Rejection(TRITON, reason or "torch was asked for")
        return DecodeBackend(name=TorchDecodeAttention.name, rejected=(against, *others))
    return DecodeBackend(name=TRITON, rejected=others)


def make_runner(
    backend: DecodeBackend,
    model: Transformer,
    cache: PagedKvCache,
    *,
    max_batch: int,
    max_tokens: int,
) -> ServingRunner:
    """What computes steps by a backend.

    Args:
        backend: chosen for this model.
        model: the decoder.
        cache: where the rows' pages are.
        max_batch: rows of one step at most.
        max_tokens: longest context of a row.
    """
    by_row = DecodeRunner(model, cache, attention=TorchDecodeAttention())
    if backend.name != TRITON:
        return by_row
    # Triton is an extra of GPU workers, so nothing imports it before it was chosen.
    from decode_service.engine.batched.runner import BatchRunner  # noqa: PLC0415

    return BatchRunner(model, cache, by_row=by_row, max_batch=max_batch, max_tokens=max_tokens)


def _against_triton(model: Transformer, *, max_tokens: int) -> str:
    """Why the kernels cannot serve a model, or nothing."""
    config = model.config
    reasons = (
        (model.device.type != "cuda", f"needs a CUDA device, and the model is on {model.device}"),
        (importlib.util.find_spec(TRITON) is None, "package triton is not installed (extra gpu)"),
        (
            config.head_dim not in HEAD_SIZES,
            f"head size {config.head_dim} is none of {', '.join(map(str, HEAD_SIZES))}",
        ),
        (
            config.rope.kind is RopeKind.DYNAMIC,
            "the dynamic rotary embedding turns each row by a table of its own",
        ),
        (
            max_tokens > MOST_TOKENS,
            f"contexts of {max_tokens} tokens are beyond the {MOST_TOKENS} that it ranks; "
            "set max_model_len",
        ),
    )
    return next((text for wrong, text in reasons if wrong), "")
