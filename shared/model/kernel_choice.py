"""Checks and times the exact attention kernels at a model's shape, when a worker starts.

A kernel counts only after it gave the right output and log-sum-exp; then the fastest serves, length
by length.

Shapes: T tokens, H query heads, G KV heads, D head size.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shared.model.current_device import computing_on
from shared.model.device_attention import KernelRange
from shared.model.exact_attention import EXACT_KERNELS, ExactKernel, HeadShape
from shared.model.plain_attention import plain_attention

MEASURED_TOKENS = (1024, 4096, 16_384)
"""Lengths at which kernels are timed; each stands for those nearest to it by ratio."""

LARGEST_ERROR = 1e-2
"""Largest difference from float32, relative to the largest value, of a 16-bit kernel."""

_CHECKED_TOKENS = 333
_REPEATS = 5
_FAILURES = (RuntimeError, ValueError, TypeError, AssertionError, ImportError, OSError, LookupError)
"""What calls of libraries end in that do not take this device, type or shape."""

Timer = Callable[[Callable[[], object]], float]
"""Gives the seconds of one call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelChoice:
    """Which kernel serves which lengths, and why."""

    ranges: tuple[KernelRange, ...]
    """Ascending; empty when no kernel works here."""
    seconds: dict[str, dict[int, float]]
    """Median of a layer's attention, by kernel and tokens."""
    rejected: dict[str, str]
    """Why a kernel serves no length."""


def choose_kernels(
    shape: HeadShape,
    device: torch.device,
    *,
    kernels: Sequence[ExactKernel] = EXACT_KERNELS,
    timer: Timer | None = None,
) -> KernelChoice:
    """Compares and times kernels on random tensors; takes a second or two on a GPU.

    Args:
        shape: heads, type and longest prompt.
        device: where they will run.
        kernels: the candidates.
        timer: how a call is timed; None times by events on the device.
    """
    with computing_on(device):
        return _chosen(shape, device, kernels=kernels, timed=timer or _on_device)


def _chosen(
    shape: HeadShape, device: torch.device, *, kernels: Sequence[ExactKernel], timed: Timer
) -> KernelChoice:
    seconds: dict[str, dict[int, float]] = {}
    rejected: dict[str, str] = {}
    lengths = _lengths(shape.max_tokens)
    for kernel in kernels:
        reason = kernel.missing or _fault(kernel, shape, device)
        if reason is not None:
            rejected[kernel.name] = reason
            continue
        try:
            seconds[kernel.name] = {
                tokens: _seconds(kernel, shape, device, tokens=tokens, timed=timed)
                for tokens in lengths
            }
        except _FAILURES as error:
            rejected[kernel.name] = f"it is right, but cannot be timed: {_said(error)}"
    working = [kernel for kernel in kernels if kernel.name in seconds]
    if not working:
        return KernelChoice(ranges=(), seconds=seconds, rejected=rejected)
    fastest = [min(working, key=lambda k: seconds[k.name][tokens]) for tokens in lengths]
    for kernel in working:
        if kernel not in fastest:
            rejected[kernel.name] = _slower(kernel.name, fastest, seconds)
    return KernelChoice(ranges=_ranges(fastest, lengths), seconds=seconds, rejected=rejected)


def _lengths(max_tokens: int) -> tuple[int, ...]:
    return tuple(n for n in MEASURED_TOKENS if n <= max_tokens) or (max_tokens,)


def _ranges(fastest: Sequence[ExactKernel], lengths: Sequence[int]) -> tuple[KernelRange, ...]:
    """Neighbours that agree are joined; others meet at the geometric mean of their lengths."""
    ranges: list[KernelRange] = []
    for index, kernel in enumerate(fastest[:-1]):
        if kernel is not fastest[index + 1]:
            middle = math.isqrt(lengths[index] * lengths[index + 1])
            ranges.append(KernelRange(up_to=middle, kernel=kernel))
    return (*ranges, KernelRange(up_to=None, kernel=fastest[-1]))


def _slower(name: str, fastest: Sequence[ExactKernel], seconds: dict[str, dict[int, float]]) -> str:
    """`slower than cudnn: 2.1 times its time at 16384 tokens`, where it comes closest."""
    ratios = [
        (taken / seconds[best.name][tokens], tokens, best.name)
        for (tokens, taken), best in zip(seconds[name].items(), fastest, strict=True)
    ]
    ratio, tokens, best = min(ratios)
    return f"slower than {best}: {ratio:.2f} times its time at {tokens} tokens"


def _random(
    shape: HeadShape, device: torch.device, *, tokens: int, rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys, values of a prompt, padded with zeros."""
    generator = torch.Generator(device).manual_seed(tokens)

    def heads(count: int) -> Tensor:
        size = (rows, count, shape.head_dim)
        x = torch.randn(size, generator=generator, device=device).to(shape.dtype)
        x[tokens:] = 0
        return x

    return heads(shape.num_heads), heads(shape.num_kv_heads), heads(shape.num_kv_heads)


def _fault(kernel: ExactKernel, shape: HeadShape, device: torch.device) -> str | None:
    """Why a kernel's results cannot be used; None: they are right."""
    tokens = min(_CHECKED_TOKENS, shape.max_tokens)
    q, k, v = _random(shape, device, tokens=tokens, rows=kernel.padded(tokens))
    try:
        out_PHD, lse_PH = kernel.attend(q, k, v, want_lse=True)
    except _FAILURES as error:
        return _said(error)
    wanted_THD, wanted_TH = plain_attention(q[:tokens], k[:tokens], v[:tokens])
    off = _difference(out_PHD[:tokens], wanted_THD)
    if not off < LARGEST_ERROR:
        return f"its output is {off:.2g} off float32, {LARGEST_ERROR} is allowed"
    assert lse_PH is not None, "it was wanted"
    off = _difference(lse_PH[:tokens], wanted_TH)
    if not off < LARGEST_ERROR:
        return f"its log-sum-exp is {off:.2g} off float32, {LARGEST_ERROR} is allowed"
    return None


def _said(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no message'}"


def _difference(got: Tensor, wanted: Tensor) -> float:
    return float((got.float() - wanted).abs().max() / wanted.abs().max())


def _seconds(
    kernel: ExactKernel, shape: HeadShape, device: torch.device, *, tokens: int, timed: Timer
) -> float:
    q, k, v = _random(shape, device, tokens=tokens, rows=kernel.padded(tokens))
    kernel.attend(q, k, v, want_lse=True)  # plans and compiles
    taken = sorted(timed(lambda: kernel.attend(q, k, v, want_lse=True)) for _ in range(_REPEATS))
    return taken[_REPEATS // 2]


def _on_device(work: Callable[[], object]) -> float:
    """Seconds between two events around a call."""
    before = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    after = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    before.record()
    work()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after)) / 1e3
