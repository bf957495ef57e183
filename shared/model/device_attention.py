"""Prefill attention on a CUDA device: the fastest exact kernel for each length of prompt.

Shapes: T tokens or queries, P the same with padding, S keys, H query heads, G KV heads, D head
size.
"""

from copy import copy
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from shared.model.attention import TorchAttention
from shared.model.exact_attention import ExactKernel


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRange:
    """The kernel of some lengths."""

    up_to: int | None
    """Longest prompt that it serves; None: any."""
    kernel: ExactKernel
    """Serves them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptAttention:
    """Attention of prompts over themselves, each over its own tokens."""

    out_THD: Tensor
    """Output."""
    lse_TH: Tensor | None
    """Natural log-sum-exp of each query's scaled logits, float32, if it was wanted."""


class PackKernel(Protocol):
    """A library's kernel for several prompts at once; keeps nothing between calls."""

    name: str
    """As logs and health show it."""

    def attend(
        self,
        q_THD: Tensor,
        k_TGD: Tensor,
        v_TGD: Tensor,
        *,
        lengths: tuple[int, ...],
        want_lse: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Output [T, H, D] and, if wanted, log-sum-exp [T, H], float32; see `prompts` below."""
        ...


class DeviceAttention:
    """Attention by chosen kernels; a prefill engine that gets it runs its own kernels around it.

    Args:
        ranges: kernels by length, ascending; the last one serves any.
        blocks: serves the last queries of a longer prompt; None leaves them to PyTorch's masks.
    """

    def __init__(
        self, ranges: tuple[KernelRange, ...], *, blocks: ExactKernel | None = None
    ) -> None:
        assert ranges, "some kernel serves"
        assert ranges[-1].up_to is None, "the last one serves any length"
        self._ranges = ranges
        self._of_blocks = blocks
        self._torch = TorchAttention()
        self.name = _described(ranges)
        self._packs: PackKernel | None = None

    def with_packs(self, kernel: PackKernel) -> "DeviceAttention":
        """The same, with a kernel for several prompts at once; without one they take turns."""
        other = copy(self)
        other._packs = kernel  # noqa: SLF001  a copy of this very class
        other.name = f"{self.name}, packs by {kernel.name}"
        return other

    def padded(self, *lengths: int) -> int:
        """Rows that `prompts` wants of the tensors of prompts of these lengths."""
        if len(lengths) == 1:
            return self._kernel(lengths[0]).padded(lengths[0])
        return sum(lengths)

    def prompts(
        self,
        q_PHD: Tensor,
        k_PGD: Tensor,
        v_PGD: Tensor,
        *,
        lengths: tuple[int, ...],
        want_lse: bool,
    ) -> PromptAttention:
        """Causal attention of prompts over themselves, whose rows lie side by side.

        Args:
            q_PHD: queries, `padded(*lengths)` rows; those after the prompts may hold anything.
            k_PGD: keys, alike; those after the prompts hold numbers.
            v_PGD: values, as keys.
            lengths: tokens of each prompt.
            want_lse: also give the log-sum-exp.
        """
        if len(lengths) == 1:
            return self._prompt(q_PHD, k_PGD, v_PGD, tokens=lengths[0], want_lse=want_lse)
        if self._packs is not None:
            out_THD, lse_TH = self._packs.attend(
                q_PHD, k_PGD, v_PGD, lengths=lengths, want_lse=want_lse
            )
            return PromptAttention(out_THD=out_THD, lse_TH=lse_TH)
        seen, first = [], 0
        for tokens in lengths:
            own = slice(first, first + tokens)
            first = own.stop
            tensors = self._room(q_PHD[own], k_PGD[own], v_PGD[own])
            seen.append(self._prompt(*tensors, tokens=tokens, want_lse=want_lse))
        lse = [each.lse_TH for each in seen if each.lse_TH is not None]
        return PromptAttention(
            out_THD=torch.cat([each.out_THD for each in seen]),
            lse_TH=torch.cat(lse) if want_lse else None,
        )

    def _prompt(
        self, q_PHD: Tensor, k_PGD: Tensor, v_PGD: Tensor, *, tokens: int, want_lse: bool
    ) -> PromptAttention:
        out_PHD, lse_PH = self._kernel(tokens).attend(q_PHD, k_PGD, v_PGD, want_lse=want_lse)
        lse_TH = None if lse_PH is None else lse_PH[:tokens]
        return PromptAttention(out_THD=out_PHD[:tokens], lse_TH=lse_TH)

    def _room(self, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of one prompt, padded as its kernel wants them."""
        tokens = tensors[0].shape[0]
        missing = self.padded(tokens) - tokens
        if missing:
            tensors = tuple(functional.pad(x, (0, 0, 0, 0, 0, missing)) for x in tensors)
        q_PHD, k_PGD, v_PGD = tensors
        return q_PHD, k_PGD, v_PGD

    def causal(self, q_THD: Tensor, k_SGD: Tensor, v_SGD: Tensor) -> Tensor:
        """See `PrefillAttention.causal`."""
        tokens = q_THD.shape[0]
        if tokens == 1:
            return _last_query(q_THD, k_SGD, v_SGD)
        if tokens < k_SGD.shape[0]:
            if self._of_blocks is None:
                return self._torch.causal(q_THD, k_SGD, v_SGD)
            return self._of_blocks.attend(q_THD, k_SGD, v_SGD, want_lse=False)[0]
        tensors = self._room(q_THD, k_SGD, v_SGD)
        return self._prompt(*tensors, tokens=tokens, want_lse=False).out_THD

    def at_positions(
        self, q_THD: Tensor, k_SGD: Tensor, v_SGD: Tensor, *, positions_T: Tensor
    ) -> Tensor:
        """See `PrefillAttention.at_positions`; an engine's own kernel needs no mask for it."""
        return self._torch.at_positions(q_THD, k_SGD, v_SGD, positions_T=positions_T)

    def _kernel(self, tokens: int) -> ExactKernel:
        return next(r.kernel for r in self._ranges if r.up_to is None or tokens <= r.up_to)


def _last_query(q_1HD: Tensor, k_SGD: Tensor, v_SGD: Tensor) -> Tensor:
    """One query over all keys; on a device never by cuDNN, which would plan every length anew."""
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q_1HD, k_SGD, v_SGD))
    if q.is_cuda and q.dtype != torch.float32:
        out: Tensor = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v)[0]  # noqa: SLF001
    else:
        out = functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    return out.squeeze(0).transpose(0, 1)


def _described(ranges: tuple[KernelRange, ...]) -> str:
    """`cudnn`, or `sdpa_flash to 2048 tokens, cudnn above`."""
    first, *rest = ranges
    if not rest:
        return first.kernel.name
    *middle, last = rest
    parts = [f"{r.kernel.name} to {r.up_to} tokens" for r in (first, *middle)]
    return f"{', '.join(parts)}, {last.kernel.name} above"
