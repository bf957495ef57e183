"""Chooses the attention backend, and says why each of the others was not chosen.

On a CUDA device, for a model whose head shape is told, the choice is made by measurement: see
`kernel_choice`. Everything else runs on PyTorch's own choice.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from shared.errors import ConfigError
from shared.model.attention import PrefillAttention, TorchAttention
from shared.model.device_attention import DeviceAttention
from shared.model.exact_attention import HEAD_SIZES, HeadShape
from shared.model.kernel_choice import KernelChoice, choose_kernels
from shared.registry.registry import Registry

AUTO = "auto"
"""Let the probe choose."""

TRITON = "triton"
"""The CUDA path: the fastest exact kernel of a library, with our kernels around it."""

_PACKAGES = {TRITON: "triton", "flashinfer": "flashinfer", "flash_attn": "flash_attn"}
"""Backends that need a CUDA device and a package of their own."""

_UNMEASURED = "no prefill kernel was measured here: only a prefill worker measures them"


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a backend was not chosen."""

    name: str
    """Backend."""
    reason: str
    """One clause."""


@dataclass(frozen=True, slots=True)
class AttentionChoice:
    """Outcome of the probe; `health` and the log show it."""

    backend: PrefillAttention
    """What runs."""
    rejected: tuple[Rejection, ...]
    """Every other known backend, and on a CUDA device every kernel that serves no length, or, as
    `NAME on blocks`, no blocks."""
    seconds: dict[str, dict[int, float]] = field(default_factory=dict)
    """What was measured: seconds of a layer's attention, by kernel and prompt tokens."""
    blocks: str = TorchAttention.name
    """What computes a block of queries against a longer prompt."""


def backends() -> Registry[type[PrefillAttention]]:
    """The implemented backends by name."""
    registry: Registry[type[PrefillAttention]] = Registry("attention backend")
    registry.register(TorchAttention.name, TorchAttention)
    return registry


def probe_attention(
    device: torch.device,
    *,
    requested: str = AUTO,
    shape: HeadShape | None = None,
    choose: Callable[[HeadShape, torch.device], KernelChoice] = choose_kernels,
) -> AttentionChoice:
    """Picks the backend for `device`.

    Args:
        device: where the model is.
        requested: a backend by name, or auto.
        shape: the model's heads; without it nothing is measured and the CUDA path is not taken.
        choose: measures the kernels.

    Raises:
        ConfigError: a backend was asked for by name that cannot run here; the text says why.
    """
    if requested not in (AUTO, *_PACKAGES):
        backends().get(requested)
    if shape is not None and requested in (AUTO, TRITON):
        reason = _why_no_triton(device, shape)
        if reason is None:
            return _measured(choose(shape, device), requested=requested)
        if requested == TRITON:
            raise _cannot_run(TRITON, reason)
        return AttentionChoice(
            backend=TorchAttention(), rejected=_with_reason(device, triton_reason=reason)
        )
    rejected = tuple(Rejection(name, _reason(name, device)) for name in _PACKAGES)
    for rejection in rejected:
        if rejection.name == requested:
            raise _cannot_run(requested, rejection.reason)
    name = TorchAttention.name if requested == AUTO else requested
    return AttentionChoice(backend=backends().get(name)(), rejected=rejected)


def _measured(choice: KernelChoice, *, requested: str) -> AttentionChoice:
    """The CUDA path, unless no kernel works here."""
    rejected = tuple(Rejection(name, reason) for name, reason in choice.rejected.items())
    if choice.ranges:
        backend: PrefillAttention = DeviceAttention(choice.ranges, blocks=choice.blocks)
        torch_reason = "the reference, without kernels of ours"
        rejected = (*rejected, Rejection(TorchAttention.name, torch_reason))
        return AttentionChoice(
            backend=backend,
            rejected=rejected,
            seconds=choice.seconds,
            blocks=choice.blocks.name if choice.blocks else TorchAttention.name,
        )
    reason = "no exact attention kernel works here"
    if requested == TRITON:
        details = "; ".join(f"{r.name}: {r.reason}" for r in rejected)
        raise _cannot_run(TRITON, f"{reason} ({details})")
    return AttentionChoice(
        backend=TorchAttention(), rejected=(Rejection(TRITON, reason), *rejected)
    )


def _cannot_run(name: str, reason: str) -> ConfigError:
    return ConfigError(
        f"attention backend {name!r} cannot run here: {reason}; use {AUTO!r} or "
        f"{TorchAttention.name!r}"
    )


def _why_no_triton(device: torch.device, shape: HeadShape) -> str | None:
    """Why the CUDA path cannot be taken, as far as that shows without a call."""
    missing = _missing(TRITON, device)
    if missing is not None:
        return missing
    if shape.dtype not in (torch.bfloat16, torch.float16):
        return f"the fast kernels take 16-bit types, and the model is {shape.dtype}"
    if shape.head_dim not in HEAD_SIZES:
        return f"head size {shape.head_dim} is not one of {', '.join(map(str, HEAD_SIZES))}"
    return None


def _with_reason(device: torch.device, *, triton_reason: str) -> tuple[Rejection, ...]:
    """Rejections where the CUDA path is out, and with it everything that it would choose from."""
    others = (name for name in _PACKAGES if name != TRITON)
    return (
        Rejection(TRITON, triton_reason),
        *(Rejection(n, _missing(n, device) or "runs in the triton backend only") for n in others),
    )


def _reason(name: str, device: torch.device) -> str:
    return _missing(name, device) or _UNMEASURED


def _missing(name: str, device: torch.device) -> str | None:
    if device.type != "cuda":
        return f"needs a CUDA device, and the model is on {device.type}"
    if importlib.util.find_spec(_PACKAGES[name]) is None:
        return f"package {_PACKAGES[name]} is not installed"
    return None
