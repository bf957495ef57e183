"""The attention that a prompt's last tokens pay to those before, without their logits in memory.

The fast twin of `ranking.window_attention.window_scores`. The keys are read twice: once for the
log-sum-exp of every window row (skipped when the attention that ran before gives it), once for the
mass that each key receives. Nothing larger than [G, L] leaves the chip.

Shapes: W window rows, H query heads, G KV heads, R = W * H / G query rows that share a KV head, D
head size, L prompt tokens, C = L - W candidates, N pieces of the keys. Logarithms inside the
kernels are of base 2.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from shared.errors import ConfigError
from shared.model.exact_attention import HEAD_SIZES

_LOG2_E = math.log2(math.e)
_LEAST_ROWS = 16
_MOST_ROWS = 256
_MOST_PIECES = 64
_BLOCK = 64
_TARGET_PROGRAMS = 512


def window_mass_scores(
    q_WHD: Tensor, k_LGD: Tensor, *, pool_kernel: int, lse_WH: Tensor | None = None
) -> Tensor:
    """Attention mass of each candidate per KV head, average-pooled over positions; float32 [G, C].

    Args:
        q_WHD: rotated queries of the last W tokens, D contiguous.
        k_LGD: rotated keys of the whole prompt, D contiguous.
        pool_kernel: positions that are averaged, odd; zero padding counts in the divisor.
        lse_WH: natural log-sum-exp of each window row's scaled logits over the keys that it sees,
            float32, as attention kernels return it; None computes it.

    Raises:
        ConfigError: more window rows, or another head size, than the kernel was written for.
    """
    candidates = k_LGD.shape[0] - q_WHD.shape[0]
    mass_GC = torch.empty((k_LGD.shape[1], candidates), dtype=torch.float32, device=k_LGD.device)
    if candidates == 0:
        return mass_GC
    window_mass(q_WHD, k_LGD, mass_GC=mass_GC, lse_WH=lse_WH)
    return functional.avg_pool1d(mass_GC, pool_kernel, stride=1, padding=pool_kernel // 2)


def holds_window(q_WHD: Tensor, k_LGD: Tensor) -> bool:
    """Whether the window has few enough rows a KV head for the kernel."""
    return q_WHD.shape[0] * q_WHD.shape[1] // k_LGD.shape[1] <= _MOST_ROWS


def window_mass(
    q_WHD: Tensor, k_LGD: Tensor, *, mass_GC: Tensor, lse_WH: Tensor | None = None
) -> None:
    """Writes the mass of every candidate before it is pooled; see `window_mass_scores`.

    Args:
        q_WHD: as there.
        k_LGD: as there.
        mass_GC: float32, contiguous, overwritten.
        lse_WH: as there.

    Raises:
        ConfigError: as there.
    """
    window, heads, head_dim = q_WHD.shape
    length, kv_heads, _ = k_LGD.shape
    rows = window * heads // kv_heads
    _check(q_WHD, k_LGD, rows=rows)
    sizes = {
        "WINDOW": window,
        "GROUP": heads // kv_heads,
        "ROWS": max(_LEAST_ROWS, triton.next_power_of_2(rows)),
        "D": head_dim,
        "BLOCK": _BLOCK,
    }
    scale = head_dim**-0.5 * _LOG2_E
    strides = (q_WHD.stride(0), q_WHD.stride(1), k_LGD.stride(0), k_LGD.stride(1))
    if lse_WH is None:
        pieces = min(-(-_TARGET_PROGRAMS // kv_heads), triton.cdiv(length, _BLOCK), _MOST_PIECES)
        lse_GNR = torch.empty((kv_heads, pieces, rows), device=k_LGD.device)
        _row_sums[(kv_heads, pieces)](
            q_WHD, k_LGD, lse_GNR, length, scale, *strides, pieces, **sizes
        )
    else:
        pieces = 1
        lse_GNR = (lse_WH.t() * _LOG2_E).reshape(kv_heads, 1, rows)
    _key_sums[(kv_heads, triton.cdiv(mass_GC.shape[1], _BLOCK))](
        q_WHD,
        k_LGD,
        lse_GNR,
        mass_GC,
        length,
        scale,
        *strides,
        pieces,
        PIECES=1 if pieces == 1 else _MOST_PIECES,
        **sizes,
    )


def _check(q_WHD: Tensor, k_LGD: Tensor, *, rows: int) -> None:
    head_dim = q_WHD.shape[2]
    if rows > _MOST_ROWS or head_dim not in HEAD_SIZES:
        raise ConfigError(
            f"window scoring on Triton takes at most {_MOST_ROWS} window rows a KV head and head "
            f"sizes 16 to 256 in powers of two, not {rows} rows of {head_dim}: shorten the window "
            "or use the torch backend"
        )
    if q_WHD.stride(2) != 1 or k_LGD.stride(2) != 1:
        raise ConfigError(
            "window scoring on Triton reads queries and keys whose head dimension is contiguous: "
            "the layout of the caller's tensors changed; make them contiguous"
        )


@triton.jit
def _window_queries(
    q_ptr,
    kv_head,
    q_token_stride,
    q_head_stride,
    WINDOW: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    D: tl.constexpr,
):
    """Query rows of one KV head, [ROWS, D]; row r is window token r % W, zeros beyond W * H / G."""
    r = tl.arange(0, ROWS)
    at = (r % WINDOW) * q_token_stride + (kv_head * GROUP + r // WINDOW) * q_head_stride
    d = tl.arange(0, D)
    return tl.load(q_ptr + at[:, None] + d[None, :], mask=(r < WINDOW * GROUP)[:, None], other=0.0)


@triton.jit
def _block_logits(
    q, k_ptr, token, inside, kv_head, k_token_stride, k_head_stride, scale, D: tl.constexpr
):
    """Scaled logits of one block of keys, [ROWS, BLOCK]; 0 for keys that are not inside."""
    at = token.to(tl.int64) * k_token_stride + kv_head * k_head_stride
    k_at = at[:, None] + tl.arange(0, D)[None, :]
    k = tl.load(k_ptr + k_at, mask=inside[:, None], other=0.0)
    return tl.dot(q, tl.trans(k), input_precision="ieee") * scale


@triton.jit(do_not_specialize=["length", "pieces"])
def _row_sums(
    q_ptr,
    k_ptr,
    lse_ptr,
    length,
    scale,
    q_token_stride,
    q_head_stride,
    k_token_stride,
    k_head_stride,
    pieces,
    WINDOW: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
):
    kv_head, piece = tl.program_id(0), tl.program_id(1)
    q = _window_queries(q_ptr, kv_head, q_token_stride, q_head_stride, WINDOW, GROUP, ROWS, D)
    r = tl.arange(0, ROWS)
    last_seen = length - WINDOW + r % WINDOW
    tokens = tl.cdiv(tl.cdiv(length, BLOCK), pieces) * BLOCK
    start = piece * tokens
    end = tl.minimum(start + tokens, length)
    top = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for first in range(start, end, BLOCK):
        token = first + tl.arange(0, BLOCK)
        logits = _block_logits(
            q, k_ptr, token, token < end, kv_head, k_token_stride, k_head_stride, scale, D
        )
        seen = (token[None, :] <= last_seen[:, None]) & (token < end)[None, :]
        logits = tl.where(seen, logits, -float("inf"))
        new_top = tl.maximum(top, tl.max(logits, 1))
        # A row that saw no key yet must not subtract infinities.
        safe_top = tl.where(new_top == -float("inf"), 0.0, new_top)
        total = total * tl.exp2(top - safe_top) + tl.sum(tl.exp2(logits - safe_top[:, None]), 1)
        top = new_top
    rows = WINDOW * GROUP
    lse = tl.where(total > 0.0, top + tl.log2(tl.where(total > 0.0, total, 1.0)), -float("inf"))
    tl.store(lse_ptr + (kv_head * pieces + piece) * rows + r, lse, mask=r < rows)


@triton.jit(do_not_specialize=["length", "pieces"])
def _key_sums(
    q_ptr,
    k_ptr,
    lse_ptr,
    mass_ptr,
    length,
    scale,
    q_token_stride,
    q_head_stride,
    k_token_stride,
    k_head_stride,
    pieces,
    PIECES: tl.constexpr,
    WINDOW: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
):
    kv_head = tl.program_id(0)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    candidates = length - WINDOW
    q = _window_queries(q_ptr, kv_head, q_token_stride, q_head_stride, WINDOW, GROUP, ROWS, D)
    rows = WINDOW * GROUP
    r = tl.arange(0, ROWS)
    n = tl.arange(0, PIECES)
    lse_at = (kv_head * pieces + n)[:, None] * rows + r[None, :]
    there = (n < pieces)[:, None] & (r < rows)[None, :]
    part = tl.load(lse_ptr + lse_at, mask=there, other=-float("inf"))
    top = tl.max(part, 0)
    real = r < rows
    top = tl.where(real, top, 0.0)
    lse = top + tl.log2(tl.where(real, tl.sum(tl.exp2(part - top[None, :]), 0), 1.0))
    # Candidates lie before the window, so every row sees every one of them: no mask.
    logits = _block_logits(
        q, k_ptr, token, token < candidates, kv_head, k_token_stride, k_head_stride, scale, D
    )
    probs = tl.exp2(logits - tl.where(real, lse, 0.0)[:, None])
    mass = tl.sum(tl.where(real[:, None], probs, 0.0), 0)
    tl.store(mass_ptr + kv_head * candidates + token, mass, mask=token < candidates)
