"""Chooses the attention backend, and says why each of the others was not chosen."""

import importlib.util
from dataclasses import dataclass

import torch

from shared.errors import ConfigError
from shared.model.attention import PrefillAttention, TorchAttention
from shared.registry.registry import Registry

AUTO = "auto"
"""Let the probe choose."""

_PACKAGES = {"triton": "triton", "flashinfer": "flashinfer", "flash_attn": "flash_attn"}
"""Backends that need a CUDA device and a package of their own."""


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
    """Every other known backend."""


def backends() -> Registry[type[PrefillAttention]]:
    """The implemented backends by name."""
    registry: Registry[type[PrefillAttention]] = Registry("attention backend")
    registry.register(TorchAttention.name, TorchAttention)
    return registry


def probe_attention(device: torch.device, *, requested: str = AUTO) -> AttentionChoice:
    """Picks the backend for `device`.

    Raises:
        ConfigError: a backend was asked for by name that cannot run here; the text says why.
    """
    rejected = tuple(Rejection(name, _reason(name, device)) for name in _PACKAGES)
    for rejection in rejected:
        if rejection.name == requested:
            raise ConfigError(
                f"attention backend {requested!r} cannot run here: {rejection.reason}; "
                f"use {AUTO!r} or {TorchAttention.name!r}"
            )
    name = TorchAttention.name if requested == AUTO else requested
    return AttentionChoice(backend=backends().get(name)(), rejected=rejected)


def _reason(name: str, device: torch.device) -> str:
    if device.type != "cuda":
        return f"needs a CUDA device, and the model is on {device.type}"
    if importlib.util.find_spec(_PACKAGES[name]) is None:
        return f"package {_PACKAGES[name]} is not installed"
    return "this version has no prefill kernel for it"
