"""Rotary position embedding in the half-rotation convention of transformers.

Shapes: T tokens, H heads, D head size, R = D / 2 frequencies.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shared.model.rope_config import RopeConfig, RopeKind


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Cosines and sines of some positions, in the model's dtype."""

    cos_TD: Tensor
    """[T, D]; both halves equal."""
    sin_TD: Tensor
    """[T, D]; both halves equal."""

    def rows(self, index: slice | Tensor) -> "RopeTable":
        """The table of some of the rows (a slice is a view, a tensor of row numbers copies)."""
        return RopeTable(self.cos_TD[index], self.sin_TD[index])

    @staticmethod
    def joined(tables: Sequence["RopeTable"]) -> "RopeTable":
        """The rows of tables one after the other; one table alone is not copied."""
        if len(tables) == 1:
            return tables[0]
        return RopeTable(
            torch.cat([table.cos_TD for table in tables]),
            torch.cat([table.sin_TD for table in tables]),
        )


_FEWEST_KEPT = 2048
"""Positions of the first table that is kept."""


class Rope:
    """Makes tables for positions.

    The table of a prompt's own positions is kept for further prompts, at most twice as long as the
    longest one: it takes a dozen launches, which a device would otherwise wait for at every start.
    """

    def __init__(self, config: RopeConfig, *, head_dim: int, device: torch.device) -> None:
        self._config = config
        self._head_dim = head_dim
        self._device = device
        self._fixed_R = None if config.kind is RopeKind.DYNAMIC else self.frequencies(0)
        self._kept: RopeTable | None = None

    def frequencies(self, context_tokens: int) -> Tensor:
        """Angular frequencies [R], float32; only the dynamic kind looks at the context length."""
        cfg = self._config
        if cfg.kind is RopeKind.DYNAMIC:
            return self._base_frequencies(_dynamic_theta(cfg, context_tokens, self._head_dim))
        base_R = self._base_frequencies(cfg.theta)
        if cfg.kind is RopeKind.LINEAR:
            return base_R / cfg.factor
        if cfg.kind is RopeKind.LLAMA3:
            return _llama3(base_R, cfg)
        if cfg.kind is RopeKind.YARN:
            return _yarn(base_R, cfg, head_dim=self._head_dim)
        return base_R

    def table(self, positions_T: Tensor, *, context_tokens: int, dtype: torch.dtype) -> RopeTable:
        """Table of `positions_T` for an original prompt of `context_tokens` tokens."""
        freq_R = self.frequencies(context_tokens) if self._fixed_R is None else self._fixed_R
        angle_TR = positions_T.to(device=self._device, dtype=torch.float32)[:, None] * freq_R
        angle_TD = torch.cat((angle_TR, angle_TR), dim=-1)
        scale = self._config.attention_factor
        cos_TD, sin_TD = angle_TD.cos(), angle_TD.sin()
        if scale != 1.0:
            cos_TD, sin_TD = cos_TD * scale, sin_TD * scale
        return RopeTable(cos_TD.to(dtype), sin_TD.to(dtype))

    def prompt_table(self, tokens: int, *, dtype: torch.dtype) -> RopeTable:
        """Table of the positions 0..tokens-1 of a prompt; a view of what others see, not to write.

        Threads that miss it at once make it twice; each has its own, and all are equal.
        """
        if self._fixed_R is None:
            return self.table(self._positions(tokens), context_tokens=tokens, dtype=dtype)
        kept = self._kept
        if kept is None or kept.cos_TD.dtype is not dtype or kept.cos_TD.shape[0] < tokens:
            length = max(_FEWEST_KEPT, 1 << (tokens - 1).bit_length())
            kept = self.table(self._positions(length), context_tokens=length, dtype=dtype)
            self._kept = kept
        return kept.rows(slice(tokens))

    def _positions(self, tokens: int) -> Tensor:
        return torch.arange(tokens, device=self._device)

    def _base_frequencies(self, theta: float) -> Tensor:
        exponent_R = torch.arange(0, self._head_dim, 2, dtype=torch.float32, device=self._device)
        return 1.0 / theta ** (exponent_R / self._head_dim)


def rotate(x_THD: Tensor, table: RopeTable) -> Tensor:
    """Rotates every head of `x_THD` [T, H, D] by its token's angle; returns a new tensor."""
    half = x_THD.shape[-1] // 2
    cos, sin_half = table.cos_TD[:, None, :], table.sin_TD[:, None, :half]
    out_THD = x_THD * cos
    out_THD[..., :half].addcmul_(x_THD[..., half:], sin_half, value=-1.0)
    out_THD[..., half:].addcmul_(x_THD[..., :half], sin_half)
    return out_THD


def _dynamic_theta(cfg: RopeConfig, context_tokens: int, head_dim: int) -> float:
    context = max(context_tokens, cfg.original_max_position)
    stretch = cfg.factor * context / cfg.original_max_position - (cfg.factor - 1.0)
    return float(cfg.theta * stretch ** (head_dim / (head_dim - 2)))


def _llama3(base_R: Tensor, cfg: RopeConfig) -> Tensor:
    """Long wavelengths are stretched, short ones kept, those between are blended."""
    rotations_R = cfg.original_max_position * base_R / (2.0 * math.pi)
    keep_R = (rotations_R - cfg.low_freq_factor) / (cfg.high_freq_factor - cfg.low_freq_factor)
    keep_R = keep_R.clamp(0.0, 1.0)
    return keep_R * base_R + (1.0 - keep_R) * base_R / cfg.factor


def _yarn(base_R: Tensor, cfg: RopeConfig, *, head_dim: int) -> Tensor:
    """Dimensions that turn often are kept, rare turners are stretched, a ramp lies between."""
    low = _turning_dim(cfg.beta_fast, cfg, head_dim=head_dim)
    high = _turning_dim(cfg.beta_slow, cfg, head_dim=head_dim)
    if cfg.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low if high != low else 0.001
    dims_R = torch.arange(head_dim // 2, dtype=torch.float32, device=base_R.device)
    stretch_R = ((dims_R - low) / width).clamp(0.0, 1.0)
    return base_R / cfg.factor * stretch_R + base_R * (1.0 - stretch_R)


def _turning_dim(rotations: float, cfg: RopeConfig, *, head_dim: int) -> float:
    """Dimension (fractional) that makes `rotations` turns within the pre-training context."""
    turns = cfg.original_max_position / (rotations * 2.0 * math.pi)
    return head_dim * math.log(turns) / (2.0 * math.log(cfg.theta))
