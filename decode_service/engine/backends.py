"""Chooses how a step is computed, and says why each of the other ways was not.

Three are there: `torch`, row by row, on any device and for every policy; `triton`, whole batches by
kernels of ours, for the rows of `batched/row_plan.py`, while the first serves the rest; and
`flashinfer`, the same but for layers that read everything and choose nothing, which that library
computes. It is never chosen by itself: ours is faster wherever the two were measured.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import torch

from decode_service.engine.attention import TorchDecodeAttention
from decode_service.engine.kv_cache import PagedKvCache
from decode_service.engine.rows_to_come import no_rows_to_come
from decode_service.engine.runner import DecodeRunner, ServingRunner
from shared.errors import ConfigError
from shared.model.library_attention import FLASHINFER_HEAD_SIZES, why_missing
from shared.model.probe import AUTO, Rejection
from shared.model.rope_config import RopeKind
from shared.model.transformer import Transformer

TRITON = "triton"
HEAD_SIZES = (16, 32, 64, 128, 256)
"""Head sizes of the attention kernel."""
MOST_TOKENS = 262_144
"""Longest row whose pages the selection ranks."""

FLASHINFER = "flashinfer"

_SERVES = {
    TRITON: "dense, delta; rows of other policies by torch",
    FLASHINFER: "dense; layers that choose pages or read chosen ones by triton; "
    "rows of other policies by torch",
}
_UNASKED_FLASHINFER = "slower than triton where both were measured; ask for it by name"
_NO_FLASH_ATTN = Rejection("flash_attn", "no decode kernel of it is used: it was slower than ours")


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

    @property
    def batches(self) -> bool:
        """Whether kernels compute whole batches, and leave out the rows that they cannot serve."""
        return self.name in (TRITON, FLASHINFER)

    def log_facts(self) -> dict[str, str]:
        """What a start-up line says of it."""
        return {
            "attention": self.name,
            "attention_serves": _SERVES.get(self.name, "all rows"),
            "attention_rejected": "; ".join(self.rejections),
        }


def probe_decode(
    model: Transformer,
    *,
    max_tokens: int,
    requested: str = AUTO,
    compare: Callable[[Transformer], str] | None = None,
) -> DecodeBackend:
    """Picks the backend for a model where it is.

    Args:
        model: the decoder.
        max_tokens: longest context of a row.
        requested: `auto`, or a backend by name.
        compare: says what is wrong with FlashInfer's results, or nothing; None: as in
            `flashinfer_check.py`. Called only if it was asked for and could run.

    Raises:
        ConfigError: a backend was asked for by name that is unknown or cannot run here.
    """
    known = (TRITON, FLASHINFER, TorchDecodeAttention.name)
    if requested not in (AUTO, *known, _NO_FLASH_ATTN.name):
        raise ConfigError(
            f"attention backend {requested!r} is unknown: choose {AUTO}, {', '.join(known)}"
        )
    against_triton = _against_triton(model, max_tokens=max_tokens)
    against_flashinfer = against_triton or _against_flashinfer(model)
    if requested == FLASHINFER and not against_flashinfer:
        against_flashinfer = (compare or _compared)(model)
    refusals = {
        TRITON: against_triton,
        FLASHINFER: against_flashinfer,
        _NO_FLASH_ATTN.name: _NO_FLASH_ATTN.reason,
    }
    if refusals.get(requested):
        raise ConfigError(
            f"attention backend {requested!r} cannot run here: {refusals[requested]}; "
            f"use {AUTO!r} or {TorchDecodeAttention.name!r}"
        )
    chosen = requested
    if requested == AUTO:
        chosen = TorchDecodeAttention.name if against_triton else TRITON
    unasked = {TRITON: f"{requested} was asked for", FLASHINFER: _UNASKED_FLASHINFER}
    rejected = tuple(
        Rejection(name, reason or unasked[name])
        for name, reason in refusals.items()
        if name != chosen
    )
    return DecodeBackend(name=chosen, rejected=rejected)


def make_runner(  # noqa: PLR0913  all that a runner depends on
    backend: DecodeBackend,
    model: Transformer,
    cache: PagedKvCache,
    *,
    max_batch: int,
    max_tokens: int,
    products: str = AUTO,
    rows_to_come: Callable[[], bool] = no_rows_to_come,
) -> ServingRunner:
    """What computes steps by a backend.

    Args:
        backend: chosen for this model.
        model: the decoder.
        cache: where the rows' pages are.
        max_batch: rows of one step at most.
        max_tokens: longest context of a row.
        products: what computes the products with the weights, where kernels serve: `auto`,
            `library` or `triton`.
        rows_to_come: whether rows are about to join.

    Raises:
        ConfigError: kernels of ours are to multiply, and PyTorch steps row by row.
    """
    by_row = DecodeRunner(model, cache, attention=TorchDecodeAttention())
    if not backend.batches:
        if products == TRITON:
            raise ConfigError(
                f"products {TRITON!r} go with attention {TRITON!r} or {FLASHINFER!r}, and here "
                f"{backend.name!r} computes steps ({'; '.join(backend.rejections)}); use {AUTO!r}"
            )
        return by_row
    # Triton is an extra of GPU workers, so nothing imports it before it was chosen.
    from decode_service.engine.batched.dense_attention import (  # noqa: PLC0415
        DenseMaker,
        by_triton,
        flashinfer_maker,
    )
    from decode_service.engine.batched.product_choice import ProductChoice  # noqa: PLC0415
    from decode_service.engine.batched.product_log import log_choice  # noqa: PLC0415
    from decode_service.engine.batched.runner import BatchRunner, StepWays  # noqa: PLC0415

    dense: DenseMaker = by_triton
    if backend.name == FLASHINFER:
        dense = flashinfer_maker(model.config, model.dtype, max_rows=max_batch, device=model.device)
    choice = ProductChoice(model, max_rows=max_batch, requested=products, on_choice=log_choice)
    return BatchRunner(
        model,
        cache,
        by_row=by_row,
        max_batch=max_batch,
        max_tokens=max_tokens,
        ways=StepWays(dense=dense, products=choice, rows_to_come=rows_to_come),
    )


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


def _against_flashinfer(model: Transformer) -> str:
    """Why FlashInfer cannot serve a model that the kernels of ours can, or nothing, by its word."""
    missing = why_missing("flashinfer", "flashinfer-python")
    if missing is not None:
        return f"{missing} (extra flashinfer)"
    head_dim = model.config.head_dim
    if head_dim not in FLASHINFER_HEAD_SIZES:
        return f"head size {head_dim} is none of {', '.join(map(str, FLASHINFER_HEAD_SIZES))}"
    if model.dtype not in (torch.bfloat16, torch.float16):
        return f"its tensor cores take 16-bit types, and the model is {model.dtype}"
    return ""


def _compared(model: Transformer) -> str:
    """See `flashinfer_check.py`, which imports Triton and with it is left alone until now."""
    from decode_service.engine.flashinfer_check import flashinfer_fault  # noqa: PLC0415

    return flashinfer_fault(model)
