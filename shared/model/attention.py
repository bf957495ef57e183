"""The seam for prefill attention, and its PyTorch implementation.

Shapes: T queries, S keys, H query heads, G KV heads (H is a multiple of G), D head size.
"""

from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - the name torch users know
from torch import Tensor

_BLOCK = 256
"""Queries that share one mask in `at_positions`; bounds the mask at 256 x S bytes."""


class PrefillAttention(Protocol):
    """Exact softmax attention of a prompt's queries over its keys, scaled by 1 / sqrt(D)."""

    name: str
    """As the probe, the log and `health` show it."""

    def causal(self, q_THD: Tensor, k_SGD: Tensor, v_SGD: Tensor) -> Tensor:
        """[T, H, D]; queries are the last T of S positions and query t sees keys 0..S-T+t."""
        ...

    def at_positions(
        self, q_THD: Tensor, k_SGD: Tensor, v_SGD: Tensor, *, positions_T: Tensor
    ) -> Tensor:
        """[T, H, D] where key s sits at position s and query t sees keys 0..positions_T[t].

        Args:
            q_THD: queries.
            k_SGD: keys of positions 0..S-1.
            v_SGD: their values.
            positions_T: int64, ascending, each in 0..S-1.
        """
        ...


class TorchAttention:
    """PyTorch's fused kernels; on CPU a chunk's past and own keys are merged, without a mask."""

    name = "torch"

    def causal(self, q_THD: Tensor, k_SGD: Tensor, v_SGD: Tensor) -> Tensor:
        """See `PrefillAttention.causal`."""
        past = k_SGD.shape[0] - q_THD.shape[0]
        assert past >= 0
        if past == 0:
            return _whole(q_THD, k_SGD, v_SGD, causal=True)
        if q_THD.shape[0] == 1:
            return _whole(q_THD, k_SGD, v_SGD, causal=False)
        if not _has_lse(q_THD):
            positions_T = torch.arange(past, k_SGD.shape[0], device=q_THD.device)
            return _blocks(q_THD, k_SGD, v_SGD, positions_T=positions_T)
        before = _with_lse(q_THD, k_SGD[:past], v_SGD[:past], causal=False)
        own = _with_lse(q_THD, k_SGD[past:], v_SGD[past:], causal=True)
        return _merge(before, own)

    def at_positions(
        self, q_THD: Tensor, k_SGD: Tensor, v_SGD: Tensor, *, positions_T: Tensor
    ) -> Tensor:
        """See `PrefillAttention.at_positions`."""
        return _blocks(q_THD, k_SGD, v_SGD, positions_T=positions_T)


def _blocks(q_THD: Tensor, k_SGD: Tensor, v_SGD: Tensor, *, positions_T: Tensor) -> Tensor:
    """Query blocks, each against no more keys than its last query sees."""
    out_THD = torch.empty_like(q_THD, memory_format=torch.contiguous_format)
    ends = positions_T.tolist()
    for start in range(0, len(ends), _BLOCK):
        stop = min(start + _BLOCK, len(ends))
        block, seen = slice(start, stop), ends[stop - 1] + 1
        first = ends[start] if _has_lse(q_THD) else 0
        keys = torch.arange(first, seen, device=q_THD.device)
        mask = keys <= positions_T[block, None]
        tail = k_SGD[first:seen], v_SGD[first:seen]
        if first == 0:
            out_THD[block] = _masked(q_THD[block], *tail, mask=mask)
            continue
        before = _with_lse(q_THD[block], k_SGD[:first], v_SGD[:first], causal=False)
        out_THD[block] = _merge(before, _with_lse(q_THD[block], *tail, causal=False, mask=mask))
    return out_THD


def _whole(q_THD: Tensor, k_SGD: Tensor, v_SGD: Tensor, *, causal: bool) -> Tensor:
    out = F.scaled_dot_product_attention(
        *_batched(q_THD, k_SGD, v_SGD), is_causal=causal, enable_gqa=True
    )
    return _unbatched(out)


def _masked(q_THD: Tensor, k_SGD: Tensor, v_SGD: Tensor, *, mask: Tensor) -> Tensor:
    out = F.scaled_dot_product_attention(
        *_batched(q_THD, k_SGD, v_SGD), attn_mask=mask, enable_gqa=True
    )
    return _unbatched(out)


def _has_lse(q_THD: Tensor) -> bool:
    """Whether the CPU kernel that returns the log-sum-exp takes these queries."""
    return q_THD.device.type == "cpu" and hasattr(
        torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu"
    )


def _with_lse(
    q_THD: Tensor, k_SGD: Tensor, v_SGD: Tensor, *, causal: bool, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Output [T, H, D] and log-sum-exp [T, H], float32."""
    bias = None
    if mask is not None:
        bias = torch.zeros(mask.shape, dtype=q_THD.dtype).masked_fill_(~mask, float("-inf"))
    # The public function hides the log-sum-exp that an exact merge needs.
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001
        *_batched(q_THD, k_SGD, v_SGD), 0.0, causal, attn_mask=bias
    )
    return _unbatched(out), lse.squeeze(0).transpose(0, 1)


def _merge(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    """Attention over two disjoint key sets; every query sees at least one key of each."""
    (out_a, lse_a), (out_b, lse_b) = first, second
    share_TH1 = torch.sigmoid(lse_a - lse_b).unsqueeze(-1)
    return torch.lerp(out_b.float(), out_a.float(), share_TH1).to(out_a.dtype)


def _batched(q_THD: Tensor, k_SGD: Tensor, v_SGD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The [1, heads, tokens, D] views that PyTorch's kernels take."""
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q_THD, k_SGD, v_SGD))
    return q, k, v


def _unbatched(out_1HTD: Tensor) -> Tensor:
    return out_1HTD.squeeze(0).transpose(0, 1)
