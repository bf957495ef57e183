"""Checks and times the exact attention kernels at a model's shape, when a worker starts.

A kernel counts only after it gave the right output and log-sum-exp; then the fastest serves, length
by length. Of those that are right for a block of queries against all keys before its end as well,
the fastest serves such blocks.

Shapes: T queries, S keys, H query heads, G KV heads, D head size.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from shared.model.current_device import computing_on
from shared.model.device_attention import KernelRange
from shared.model.device_time import seconds_on_device, seconds_when_ahead
from shared.model.exact_attention import EXACT_KERNELS, ExactKernel, HeadShape
from shared.model.kernel_check import fault_of, said
from shared.model.plain_attention import plain_attention

MEASURED_TOKENS = (1024, 4096, 16_384, 32_768)
"""Lengths at which kernels are timed; each stands for those nearest to it by ratio."""

MEASURED_BLOCK = (2048, 16_384)
"""Queries and keys of a block that kernels are timed at."""

_CHECKED_TOKENS = 333
_CHECKED_BLOCK = 111
_REPEATS = 5
_ROW_OF_TOKENS = 32_768
"""Calls are timed in a row of at least this many tokens, of one call at least."""
_PRODUCTS_PER_SECOND = 6e14
"""Floating-point operations of an H200 in a layer's matrix products."""
_LAUNCHES_SECONDS = 3e-4
"""What a host takes to enqueue a layer, about: ten launches."""
_CLEARLY_FASTER = 0.97
"""Share of another kernel's time from which on one takes its place at a longer prompt."""
Timer = Callable[[Callable[[], object]], float]
"""Gives the seconds of one call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelChoice:
    """Which kernel serves which lengths, and why."""

    ranges: tuple[KernelRange, ...]
    """Ascending; empty when no kernel works here."""
    seconds: dict[str, dict[int, float]]
    """A layer's attention, by kernel and tokens: the least of several measurements."""
    rejected: dict[str, str]
    """Why a kernel serves no length, or, as `NAME on blocks`, no blocks."""
    blocks: ExactKernel | None = None
    """Serves blocks of queries against more keys; None: none of the kernels can."""
    block_seconds: dict[str, float] = field(default_factory=dict)
    """A block's attention, by kernel, as `seconds`."""


def choose_kernels(
    shape: HeadShape,
    device: torch.device,
    *,
    kernels: Sequence[ExactKernel] = EXACT_KERNELS,
    timer: Timer | None = None,
) -> KernelChoice:
    """Compares and times kernels on random tensors.

    It takes a second or two on a GPU, and at the first start with a package that compiles its
    kernels as much longer as that takes: flash-attn 4 seconds, FlashInfer about a minute.

    Args:
        shape: heads, type and longest prompt.
        device: where they will run.
        kernels: the candidates.
        timer: how calls are timed; None: by events on the device, behind other work where the host
            is ahead of it.
    """
    with computing_on(device):
        return _chosen(shape, device, kernels=kernels, timed=timer)


def _chosen(
    shape: HeadShape, device: torch.device, *, kernels: Sequence[ExactKernel], timed: Timer | None
) -> KernelChoice:
    lengths = _lengths(shape.max_tokens)
    seconds: dict[str, dict[int, float]] = {}
    rejected: dict[str, str] = {}
    for kernel in kernels:
        reason = kernel.missing or _fault(kernel, shape, device)
        found = reason or _times(kernel, shape, device, lengths=lengths, timed=timed)
        if isinstance(found, str):
            rejected[kernel.name] = found
        else:
            seconds[kernel.name] = found
    working = [kernel for kernel in kernels if kernel.name in seconds]
    if not working:
        return KernelChoice(ranges=(), seconds=seconds, rejected=rejected)
    serving = _serving(working, lengths, seconds)
    for kernel in working:
        if kernel not in serving:
            rejected[kernel.name] = _slower(kernel.name, serving, seconds)
    ranges = _ranges(serving, lengths)
    whole = KernelChoice(ranges=ranges, seconds=seconds, rejected=rejected)
    return _with_blocks(whole, shape, device, working=working, timed=timed)


def _serving(
    working: Sequence[ExactKernel],
    lengths: Sequence[int],
    seconds: Mapping[str, Mapping[int, float]],
) -> list[ExactKernel]:
    """A kernel for each length: the next shorter one's, unless another is clearly faster.

    What leads at one length by as little as two measurements differ would otherwise serve all
    longer prompts too, where it may be the slower one.
    """
    serving: list[ExactKernel] = []
    for tokens in lengths:
        best = min(working, key=lambda kernel: seconds[kernel.name][tokens])
        before = serving[-1] if serving else best
        gain = seconds[best.name][tokens] / seconds[before.name][tokens]
        serving.append(best if gain < _CLEARLY_FASTER else before)
    return serving


def _with_blocks(
    whole: KernelChoice,
    shape: HeadShape,
    device: torch.device,
    *,
    working: Sequence[ExactKernel],
    timed: Timer | None,
) -> KernelChoice:
    """The choice with the fastest of the kernels that mask blocks as they should."""
    keys = min(MEASURED_BLOCK[1], shape.max_tokens)
    tokens = max(1, keys * MEASURED_BLOCK[0] // MEASURED_BLOCK[1])
    seconds: dict[str, float] = {}
    rejected = dict(whole.rejected)
    for kernel in working:
        reason = _fault_of_block(kernel, shape, device)
        found = reason or _times(
            kernel, shape, device, lengths=(keys,), timed=timed, queries=tokens
        )
        if isinstance(found, str):
            rejected[f"{kernel.name} on blocks"] = found
        else:
            seconds[kernel.name] = found[keys]
    right = [kernel for kernel in working if kernel.name in seconds]
    best = min(right, key=lambda kernel: seconds[kernel.name], default=None)
    for kernel in right:
        if best is not None and kernel is not best:
            ratio = seconds[kernel.name] / seconds[best.name]
            rejected[f"{kernel.name} on blocks"] = (
                f"slower than {best.name}: {ratio:.2f} times its time at {tokens} tokens of {keys}"
            )
    return replace(whole, rejected=rejected, blocks=best, block_seconds=seconds)


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
    """`slower than cudnn: 2.10 times its time at 16384 tokens`, where it comes closest."""
    ratios = [
        (taken / seconds[best.name][tokens], tokens, best.name)
        for (tokens, taken), best in zip(seconds[name].items(), fastest, strict=True)
    ]
    ratio, tokens, best = min(ratios)
    what = "slower" if ratio > 1 else "not clearly faster"
    return f"{what} than {best}: {ratio:.2f} times its time at {tokens} tokens"


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
    """Why a kernel's results for whole prompts cannot be used; None: they are right."""
    tokens = min(_CHECKED_TOKENS, shape.max_tokens)
    tensors = _random(shape, device, tokens=tokens, rows=kernel.padded(tokens))
    return _wrong(kernel, tensors, tokens=tokens, keys=tokens)


def _fault_of_block(kernel: ExactKernel, shape: HeadShape, device: torch.device) -> str | None:
    """The same for a block of queries against more keys."""
    keys = min(_CHECKED_TOKENS, shape.max_tokens)
    tokens = -(-keys * _CHECKED_BLOCK // _CHECKED_TOKENS)
    q, k, v = _random(shape, device, tokens=keys, rows=keys)
    return _wrong(kernel, (q[-tokens:], k, v), tokens=tokens, keys=keys)


def _wrong(
    kernel: ExactKernel, tensors: tuple[Tensor, Tensor, Tensor], *, tokens: int, keys: int
) -> str | None:
    """What is wrong with a kernel's results for `tokens` queries, padding left out, if anything."""
    q, k, v = tensors

    def attend() -> tuple[Tensor, Tensor | None]:
        out_THD, lse_TH = kernel.attend(q, k, v, want_lse=True)
        return out_THD[:tokens], None if lse_TH is None else lse_TH[:tokens]

    return fault_of(attend, wanted=lambda: plain_attention(q[:tokens], k[:keys], v[:keys]))


def _times(
    kernel: ExactKernel,
    shape: HeadShape,
    device: torch.device,
    *,
    lengths: Sequence[int],
    timed: Timer | None,
    queries: int | None = None,
) -> dict[int, float] | str:
    """Seconds by length of whole prompts, or of their last `queries` tokens; or why there are none.

    Short ones are called several times in a row, and the least counts: what holds up a host for a
    moment is as long as they are.

    A kernel that is right for a few tokens may still fail at many.
    """
    found = {}
    try:
        for tokens in lengths:
            rows = tokens if queries else kernel.padded(tokens)
            q, k, v = _random(shape, device, tokens=tokens, rows=rows)
            work = partial(kernel.attend, q[-queries:] if queries else q, k, v, want_lse=True)
            work()  # plans and compiles
            calls = max(1, _ROW_OF_TOKENS // (queries or tokens))
            row = partial(_in_a_row, work, calls=calls)
            timer = timed or _timer(shape, queries or tokens)
            found[tokens] = min(timer(row) for _ in range(_REPEATS)) / calls
    except Exception as error:  # noqa: BLE001  of its own kind, again
        return f"it is right, but cannot be timed: {said(error)}"
    return found


def _timer(shape: HeadShape, tokens: int) -> Timer:
    """Whether launches count: in a layer whose products take longer than they, a host is ahead."""
    width = shape.num_heads * shape.head_dim
    products = 2 * 12 * width**2 * tokens  # a decoder layer has about 12 times width^2 weights
    ahead = products > _LAUNCHES_SECONDS * _PRODUCTS_PER_SECOND
    return seconds_when_ahead if ahead else seconds_on_device


def _in_a_row(work: Callable[[], object], *, calls: int) -> None:
    for _ in range(calls):
        work()
