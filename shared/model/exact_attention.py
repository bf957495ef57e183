"""The exact attention kernels for prompts on a CUDA device: what they are, and those of PyTorch.

Every one computes causal softmax attention of a prompt over itself, scaled by 1 / sqrt(D), and can
tell the natural log-sum-exp of each query's logits, which the scoring of tokens reuses. Those that
align their mask at the last query and the last key also serve a block of queries against all keys
before its end; `kernel_choice` finds out which do.

Shapes: T queries, S keys, P tokens of a prompt (padding included), H query heads, G KV heads, D
head size.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from shared.model.config import ModelConfig
from shared.model.library_attention import FlashAttn2Kernel, FlashAttn4Kernel, FlashInferKernel

HEAD_SIZES = (16, 32, 64, 128, 256)
"""Head sizes of our own kernels around these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    """What attention kernels of a model are chosen by."""

    num_heads: int
    """H."""
    num_kv_heads: int
    """G; divides H."""
    head_dim: int
    """D."""
    dtype: torch.dtype
    """Of queries, keys and values."""
    max_tokens: int
    """Longest prompt."""

    @classmethod
    def of(cls, config: ModelConfig, dtype: torch.dtype) -> "HeadShape":
        """That of a model in a type."""
        return cls(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=dtype,
            max_tokens=config.max_position,
        )


class ExactKernel(Protocol):
    """One library's kernel; keeps nothing between calls."""

    @property
    def name(self) -> str:
        """As logs and health show it."""

    @property
    def missing(self) -> str | None:
        """Why it cannot be called here, as far as that shows without a call; None: it can."""

    def padded(self, tokens: int) -> int:
        """Rows that the tensors of a prompt of `tokens` tokens must have, at least as many.

        Rows after the prompt hold numbers, zeros for instance; no token of the prompt sees them.
        """

    def attend(
        self, q_THD: Tensor, k_SGD: Tensor, v_SGD: Tensor, *, want_lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Output [T, H, D] and, if wanted, log-sum-exp [T, H], float32.

        Args:
            q_THD: queries; of a whole prompt, P rows, or of the last T of S positions, where query
                t sees keys 0..S-T+t. A kernel that masks otherwise is given whole prompts only.
            k_SGD: keys.
            v_SGD: values.
            want_lse: also give the log-sum-exp.
        """


@dataclass(frozen=True, slots=True)
class CudnnKernel:
    """cuDNN's fused attention through PyTorch.

    It plans anew for every length, 40 to 70 ms on an H200, so lengths are few: a prompt is padded
    by less than a 32nd, or to a whole tile of 128 rows where that is more. For the same reason the
    log-sum-exp, which costs next to nothing, is always computed. Its mask starts at the first query
    and the first key, so that it serves whole prompts only.
    """

    @property
    def name(self) -> str:
        """`cudnn`."""
        return "cudnn"

    @property
    def missing(self) -> str | None:
        """PyTorch may be built without it."""
        if not torch.backends.cudnn.is_available():  # type: ignore[no-untyped-call]
            return "this PyTorch has no cuDNN"
        return _missing_operator("_scaled_dot_product_cudnn_attention")

    def padded(self, tokens: int) -> int:
        """The next of at most 32 lengths between two powers of two."""
        step = max(128, (1 << tokens.bit_length()) // 64)
        return -(-tokens // step) * step

    def attend(
        self, q_PHD: Tensor, k_PGD: Tensor, v_PGD: Tensor, *, want_lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        """See `ExactKernel.attend`."""
        # The public function neither names its kernel nor tells the log-sum-exp.
        found = torch.ops.aten._scaled_dot_product_cudnn_attention(  # noqa: SLF001
            *(_batched(x) for x in (q_PHD, k_PGD, v_PGD)),
            attn_bias=None,
            compute_log_sumexp=True,
            is_causal=True,
        )
        return _unbatched(found[0]), _rows(found[1], q_PHD) if want_lse else None


@dataclass(frozen=True, slots=True)
class SdpaFlashKernel:
    """FlashAttention 2 as PyTorch brings it."""

    @property
    def name(self) -> str:
        """`sdpa_flash`."""
        return "sdpa_flash"

    @property
    def missing(self) -> str | None:
        """PyTorch may be built without it."""
        return _missing_operator("_scaled_dot_product_flash_attention")

    def padded(self, tokens: int) -> int:
        """As many."""
        return tokens

    def attend(
        self, q_PHD: Tensor, k_PGD: Tensor, v_PGD: Tensor, *, want_lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        """See `ExactKernel.attend`."""
        found = torch.ops.aten._scaled_dot_product_flash_attention(  # noqa: SLF001
            *(_batched(x) for x in (q_PHD, k_PGD, v_PGD)), is_causal=True
        )
        return _unbatched(found[0]), _rows(found[1], q_PHD) if want_lse else None


EXACT_KERNELS: tuple[ExactKernel, ...] = (
    CudnnKernel(),
    SdpaFlashKernel(),
    FlashAttn4Kernel(),
    FlashAttn2Kernel(),
    FlashInferKernel(),
)
"""All that are known."""


def _missing_operator(name: str) -> str | None:
    return None if hasattr(torch.ops.aten, name) else f"this PyTorch has no operator {name}"


def _batched(x_PHD: Tensor) -> Tensor:
    """The [1, heads, P, D] view that PyTorch's kernels take."""
    return x_PHD.transpose(0, 1).unsqueeze(0)


def _unbatched(out_1HPD: Tensor) -> Tensor:
    return out_1HPD.squeeze(0).transpose(0, 1)


def _rows(lse: Tensor, q_PHD: Tensor) -> Tensor:
    """[P, H] of a log-sum-exp [1, H, P] or [1, H, P, 1]; some kernels pad its rows."""
    tokens, heads, _ = q_PHD.shape
    return lse.reshape(heads, -1)[:, :tokens].t()
