"""What a checkpoint says about its rotary position embedding."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from shared.errors import ModelLoadError


class RopeKind(Enum):
    """How frequencies are stretched for contexts beyond the pre-training length."""

    DEFAULT = "default"
    LINEAR = "linear"
    DYNAMIC = "dynamic"
    YARN = "yarn"
    LLAMA3 = "llama3"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Parameters of one rotary embedding; those that a kind does not use keep their defaults."""

    kind: RopeKind = RopeKind.DEFAULT
    """Frequency rule."""
    theta: float = 10000.0
    """Base of the geometric series of wavelengths."""
    factor: float = 1.0
    """Stretch; 1 for the default kind."""
    original_max_position: int = 0
    """Pre-training context in tokens; 0 for the default kind."""
    low_freq_factor: float = 1.0
    """llama3: wavelengths above original / this are stretched in full."""
    high_freq_factor: float = 4.0
    """llama3: wavelengths below original / this are left alone."""
    beta_fast: float = 32.0
    """yarn: rotations within the pre-training context above which a dimension is left alone."""
    beta_slow: float = 1.0
    """yarn: rotations below which a dimension is stretched in full."""
    attention_factor: float = 1.0
    """yarn: multiplies cosines and sines; resolved from mscale values where given."""
    truncate: bool = True
    """yarn: whether the ramp's bounds are rounded to whole dimensions."""

    def context_limit(self, max_position_embeddings: int) -> int:
        """Tokens that the stretched embedding serves, given the checkpoint's own figure."""
        if self.kind in {RopeKind.LINEAR, RopeKind.DYNAMIC}:
            return int(max_position_embeddings * self.factor)
        if self.kind is RopeKind.YARN:
            return max(max_position_embeddings, int(self.original_max_position * self.factor))
        return max_position_embeddings

    def canonical(self) -> str:
        """One line of text, equal exactly when the embeddings are equal."""
        values = asdict(self) | {"kind": self.kind.value}
        return ",".join(f"{key}={values[key]}" for key in sorted(values))

    def to_dict(self) -> dict[str, Any]:
        """The `rope_parameters` mapping of a config.json."""
        out: dict[str, Any] = {"rope_type": self.kind.value, "rope_theta": self.theta}
        if self.kind is not RopeKind.DEFAULT:
            out["factor"] = self.factor
        if self.kind in {RopeKind.YARN, RopeKind.LLAMA3}:
            out["original_max_position_embeddings"] = self.original_max_position
        if self.kind is RopeKind.LLAMA3:
            out["low_freq_factor"] = self.low_freq_factor
            out["high_freq_factor"] = self.high_freq_factor
        if self.kind is RopeKind.YARN:
            out["beta_fast"] = self.beta_fast
            out["beta_slow"] = self.beta_slow
            out["attention_factor"] = self.attention_factor
            out["truncate"] = self.truncate
        return out


def rope_from_dict(raw: Mapping[str, Any], *, max_position: int) -> RopeConfig:
    """Reads `rope_parameters`, or the older `rope_theta` with `rope_scaling`.

    Raises:
        ModelLoadError: an unknown kind, a missing parameter, or a partial rotation.
    """
    params: dict[str, Any] = {
        **(raw.get("rope_scaling") or {}),
        **(raw.get("rope_parameters") or {}),
    }
    kind = _kind(params)
    theta = float(params.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    partial = params.get("partial_rotary_factor", raw.get("partial_rotary_factor"))
    if partial not in {None, 1}:
        raise ModelLoadError(
            f"the checkpoint rotates only {partial} of each head: no family served here does that; "
            "use a checkpoint without partial_rotary_factor"
        )
    if kind is RopeKind.DEFAULT:
        return RopeConfig(theta=theta)
    original = int(params.get("original_max_position_embeddings") or max_position)
    if kind is RopeKind.YARN and params.get("factor") is None:
        params["factor"] = max_position / original
    factor = _required(params, "factor", kind=kind)
    if factor < 1.0:
        raise ModelLoadError(
            f"rope factor is {factor}: stretching factors are at least 1; the checkpoint's "
            "config.json is damaged or "
            "hand-edited, restore it"
        )
    if kind is RopeKind.LLAMA3:
        return RopeConfig(
            kind=kind,
            theta=theta,
            factor=factor,
            original_max_position=int(
                _required(params, "original_max_position_embeddings", kind=kind)
            ),
            low_freq_factor=_required(params, "low_freq_factor", kind=kind),
            high_freq_factor=_required(params, "high_freq_factor", kind=kind),
        )
    if kind is RopeKind.YARN:
        return _yarn(params, theta=theta, factor=factor, original=original)
    return RopeConfig(kind=kind, theta=theta, factor=factor, original_max_position=max_position)


def _kind(params: Mapping[str, Any]) -> RopeKind:
    name = params.get("rope_type") or params.get("type") or "default"
    try:
        return RopeKind(name)
    except ValueError:
        known = ", ".join(kind.value for kind in RopeKind)
        raise ModelLoadError(
            f"rope kind {name!r} is not supported: the checkpoint uses a scaling outside the "
            f"known kinds ({known}); "
            "choose another checkpoint"
        ) from None


def _yarn(params: Mapping[str, Any], *, theta: float, factor: float, original: int) -> RopeConfig:
    attention_factor = params.get("attention_factor")
    if attention_factor is None:
        mscale, over = params.get("mscale"), params.get("mscale_all_dim")
        attention_factor = (
            _mscale(factor, weight=float(mscale)) / _mscale(factor, weight=float(over))
            if mscale and over
            else _mscale(factor, weight=1.0)
        )
    return RopeConfig(
        kind=RopeKind.YARN,
        theta=theta,
        factor=factor,
        original_max_position=original,
        beta_fast=float(params.get("beta_fast") or 32.0),
        beta_slow=float(params.get("beta_slow") or 1.0),
        attention_factor=float(attention_factor),
        truncate=bool(params.get("truncate", True)),
    )


def _mscale(factor: float, *, weight: float) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0


def _required(params: Mapping[str, Any], key: str, *, kind: RopeKind) -> float:
    value = params.get(key)
    if value is None:
        raise ModelLoadError(
            f"rope kind {kind.value!r} needs {key!r}, which config.json does not give: the file "
            "is incomplete; "
            "take the checkpoint's original config.json"
        )
    return float(value)
