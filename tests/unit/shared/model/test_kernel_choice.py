"""Kernels are compared and timed before one serves; attention by length follows the choice."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import cycle

import pytest
import torch
from torch import Tensor

from shared.model import kernel_choice
from shared.model.attention import TorchAttention
from shared.model.device_attention import DeviceAttention, KernelRange
from shared.model.exact_attention import (
    EXACT_KERNELS,
    CudnnKernel,
    ExactKernel,
    HeadShape,
    SdpaFlashKernel,
)
from shared.model.kernel_choice import MEASURED_TOKENS as LENGTHS
from shared.model.kernel_choice import choose_kernels
from shared.model.plain_attention import PlainKernel, plain_attention
from shared.model.shapes import MODEL_SHAPES

CPU = torch.device("cpu")
SHAPE = HeadShape(num_heads=6, num_kv_heads=2, head_dim=16, dtype=torch.float32, max_tokens=1 << 20)


class NotOfOursError(Exception):
    """As a library's compiler may raise."""


@dataclass
class Kernel:
    """A right kernel whose speed is told, unless it fails in some way."""

    name: str
    speed: dict[int, float] = field(default_factory=dict)
    missing: str | None = None
    wrong_out: float = 0.0
    wrong_lse: float = 0.0
    error: Exception | None = None
    longest: int | None = None
    lengths: list[int] = field(default_factory=list)
    block_speed: float = 1.0
    top_left: bool = False
    """Masks a block of queries as if it stood at the start."""

    def padded(self, tokens: int) -> int:
        return tokens + 3

    def attend(
        self, q_PHD: Tensor, k_PGD: Tensor, v_PGD: Tensor, *, want_lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        if self.error is not None:
            raise self.error
        if q_PHD.shape[0] < k_PGD.shape[0]:
            return self._block(q_PHD, k_PGD, v_PGD)
        if self.longest is not None and q_PHD.shape[0] - 3 > self.longest:
            raise RuntimeError("out of memory")
        self.lengths.append(q_PHD.shape[0] - 3)
        if q_PHD.shape[0] > 400:  # only timed
            return q_PHD, None
        out, lse = plain_attention(q_PHD, k_PGD, v_PGD)
        return out + self.wrong_out, lse + self.wrong_lse if want_lse else None

    def _block(self, q_THD: Tensor, k_SGD: Tensor, v_SGD: Tensor) -> tuple[Tensor, Tensor | None]:
        self.lengths.append(0)
        tokens = q_THD.shape[0]
        if tokens > 400:  # only timed
            return q_THD, None
        first = slice(tokens) if self.top_left else slice(None)
        return plain_attention(q_THD, k_SGD[first], v_SGD[first])


def choose(*kernels: Kernel, shape: HeadShape = SHAPE, waits: Iterator[float] | None = None):
    """As the kernels' speeds have it; each measurement of some calls waits as well."""

    def timed(work):
        before = {k.name: len(k.lengths) for k in kernels}
        work()
        (ran,) = [k for k in kernels if len(k.lengths) > before[k.name]]
        calls = len(ran.lengths) - before[ran.name]
        speed = ran.speed[ran.lengths[-1]] if ran.lengths[-1] else ran.block_speed
        return calls * speed + (0.0 if waits is None else next(waits))

    return choose_kernels(shape, CPU, kernels=kernels, timer=timed)


def test_the_fastest_serves_length_by_length():
    slow_start = Kernel("a", {1024: 3.0, 4096: 2.0, 16384: 1.0, 32768: 2.0})
    slow_end = Kernel("b", {1024: 2.0, 4096: 3.0, 16384: 4.0, 32768: 8.0})
    never = Kernel("c", {1024: 4.0, 4096: 8.0, 16384: 8.0, 32768: 9.0})
    choice = choose(slow_start, slow_end, never)
    assert [(r.up_to, r.kernel) for r in choice.ranges] == [(2048, slow_end), (None, slow_start)]
    assert choice.seconds["c"] == never.speed
    whole = {name: why for name, why in choice.rejected.items() if "blocks" not in name}
    assert whole == {"c": "slower than b: 2.00 times its time at 1024 tokens"}
    assert DeviceAttention(choice.ranges).name == "b to 2048 tokens, a above"


def test_a_lead_within_the_noise_changes_nothing_at_longer_prompts():
    """As two kernels that differ by less than two measurements of either do."""
    serves = Kernel("a", {1024: 1.0, 4096: 4.0, 16384: 16.0, 32768: 66.0})
    close = Kernel("b", {1024: 2.0, 4096: 5.0, 16384: 15.9, 32768: 65.0})
    choice = choose(serves, close)
    assert [(r.up_to, r.kernel) for r in choice.ranges] == [(None, serves)]
    assert choice.rejected["b"] == "not clearly faster than a: 0.98 times its time at 32768 tokens"


def test_a_host_that_is_held_up_changes_no_choice():
    """A call takes microseconds at short prompts, and its launch as many."""
    fast, slow = Kernel("a", dict.fromkeys(LENGTHS, 1.0)), Kernel("b", dict.fromkeys(LENGTHS, 2.0))
    held_up = cycle((9.0, 9.0, 9.0, 5.0, 9.0))
    choice = choose(fast, slow, waits=held_up)
    assert [(r.up_to, r.kernel) for r in choice.ranges] == [(None, fast)]
    assert choice.seconds["a"][1024] == 1.0 + 5.0 / 32
    assert choice.seconds["a"][32_768] == 1.0 + 5.0


@pytest.mark.parametrize(
    ("name", "launches_count"),
    [("llama-3.1-8b", []), ("r1-qwen-1.5b", [1024]), ("smollm2-135m", [1024, 4096, 8192])],
)
def test_launches_count_where_a_host_is_not_ahead(
    monkeypatch, name: str, launches_count: list[int]
):
    timed: dict[str, list[int]] = {"alone": [], "ahead": []}
    kernel = Kernel("a")

    def timer(how: str):
        def took(work) -> float:
            work()
            timed[how].append(kernel.lengths[-1])
            return 1.0

        return took

    monkeypatch.setattr(kernel_choice, "seconds_on_device", timer("alone"))
    monkeypatch.setattr(kernel_choice, "seconds_when_ahead", timer("ahead"))
    shape = replace(HeadShape.of(MODEL_SHAPES[name], torch.float32), num_kv_heads=1)
    monkeypatch.setattr(kernel_choice, "MEASURED_TOKENS", (1024, 4096, 8192))
    choose_kernels(shape, CPU, kernels=[kernel])
    assert sorted(set(timed["alone"]) - {0}) == launches_count
    assert set(timed["alone"]) & set(timed["ahead"]) <= {0}


def test_a_short_context_is_measured_at_its_length():
    kernel = Kernel("a", {500: 1.0})
    shape = HeadShape(num_heads=2, num_kv_heads=1, head_dim=16, dtype=torch.float32, max_tokens=500)
    assert choose(kernel, shape=shape).seconds == {"a": {500: 1.0}}


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (Kernel("x", missing="package x is not installed"), "package x is not installed"),
        (Kernel("x", error=RuntimeError("no kernel\nimage")), "RuntimeError: no kernel"),
        (Kernel("x", error=AssertionError()), "AssertionError: no message"),
        (Kernel("x", error=NotOfOursError("no sm_90a")), "NotOfOursError: no sm_90a"),
        (Kernel("x", wrong_out=1.0), "its output is"),
        (Kernel("x", wrong_out=torch.nan), "its output is nan off float32"),
        (Kernel("x", wrong_lse=1.0), "its log-sum-exp is"),
    ],
    ids=[
        "missing",
        "raises",
        "raises nothing said",
        "raises its own error",
        "wrong",
        "nan",
        "wrong log-sum-exp",
    ],
)
def test_a_kernel_that_does_not_work_is_rejected(broken: Kernel, reason: str):
    works = Kernel("a", dict.fromkeys(LENGTHS, 1.0))
    choice = choose(broken, works)
    assert choice.rejected["x"].startswith(reason)
    assert [r.kernel for r in choice.ranges] == [works]
    assert choose(broken).ranges == ()


def test_a_kernel_that_fails_at_a_long_prompt_only_is_rejected_too():
    short, right = Kernel("a", {1024: 1.0}, longest=1024), Kernel("b", dict.fromkeys(LENGTHS, 2.0))
    choice = choose(short, right)
    assert [(r.up_to, r.kernel) for r in choice.ranges] == [(None, right)]
    reason = "it is right, but cannot be timed: RuntimeError: out of memory"
    assert choice.rejected == {"a": reason}
    assert choice.blocks is right
    assert set(choice.seconds) == {"b"}


def test_blocks_go_to_the_fastest_kernel_that_masks_them_by_their_end():
    speeds = dict.fromkeys(LENGTHS, 1.0)
    top_left = Kernel("a", dict.fromkeys(LENGTHS, 0.5), top_left=True, block_speed=0.1)
    fast, slow = Kernel("b", speeds, block_speed=2.0), Kernel("c", speeds, block_speed=3.0)
    choice = choose(top_left, slow, fast)
    assert [r.kernel for r in choice.ranges] == [top_left]
    assert choice.blocks is fast
    assert choice.block_seconds == {"b": 2.0, "c": 3.0}
    assert choice.rejected["a on blocks"].startswith("its output is")
    assert choice.rejected["c on blocks"] == (
        "slower than b: 1.50 times its time at 2048 tokens of 16384"
    )
    assert "b on blocks" not in choice.rejected
    assert choose(top_left).blocks is None


def test_a_short_context_has_blocks_too():
    kernel = Kernel("a", {7: 1.0})
    shape = HeadShape(num_heads=2, num_kv_heads=1, head_dim=16, dtype=torch.float32, max_tokens=7)
    assert choose(kernel, shape=shape).blocks is kernel


def test_lengths_of_cudnn_are_few_and_close():
    padded = CudnnKernel().padded
    for tokens in (1, 127, 128, 129, 1000, 8191, 8193, 10_000, 65_536, 100_001):
        assert tokens <= padded(tokens) <= max(-(-tokens // 128) * 128, tokens * 33 / 32)
        assert padded(padded(tokens)) == padded(tokens)
    assert len({padded(n) for n in range(8192, 16_384)}) <= 33
    assert padded(65_536) == 65_536
    assert SdpaFlashKernel().padded(77) == 77


def test_every_kernel_has_a_name_and_says_what_is_missing():
    names = [kernel.name for kernel in EXACT_KERNELS]
    assert names == ["cudnn", "sdpa_flash", "flash_attn_4", "flash_attn", "flashinfer"]
    for kernel in EXACT_KERNELS[2:]:
        assert "is not installed" in (kernel.missing or "")


def tensors(tokens: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(keys)
    q = torch.randn((tokens, 6, 16), generator=generator)
    k, v = (torch.randn((keys, 2, 16), generator=generator) for _ in range(2))
    return q, k, v


def test_blocks_go_to_their_own_kernel():
    ours = DeviceAttention(
        (KernelRange(up_to=None, kernel=Kernel("a", error=RuntimeError("whole only"))),),
        blocks=PlainKernel(),
    )
    q, k, v = tensors(7, 40)
    torch.testing.assert_close(ours.causal(q, k, v), TorchAttention().causal(q, k, v))


def device_attention(kernel: ExactKernel) -> DeviceAttention:
    return DeviceAttention((KernelRange(up_to=None, kernel=kernel),))


@pytest.mark.parametrize(("tokens", "keys"), [(40, 40), (32, 32), (1, 40), (7, 40), (1, 1)])
def test_attention_equals_pytorch(tokens: int, keys: int):
    q, k, v = tensors(tokens, keys)
    ours, torchs = device_attention(PlainKernel()), TorchAttention()
    torch.testing.assert_close(ours.causal(q, k, v), torchs.causal(q, k, v), atol=1e-5, rtol=1e-5)
    positions_T = torch.arange(keys)[-tokens:] // 2 * 2
    got = ours.at_positions(q, k, v, positions_T=positions_T)
    assert torch.equal(got, torchs.at_positions(q, k, v, positions_T=positions_T))


def test_a_prompt_is_cut_from_its_padding():
    attention = device_attention(PlainKernel())
    room = attention.padded(21)
    assert room == 32
    q, k, v = tensors(room, room)
    q[21:] = math.nan  # nobody writes queries there
    seen = attention.prompts(q, k, v, lengths=(21,), want_lse=True)
    wanted, lse = plain_attention(q[:21], k[:21], v[:21])
    torch.testing.assert_close(seen.out_THD, wanted, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(seen.lse_TH, lse, atol=1e-6, rtol=1e-5)
    assert attention.prompts(q, k, v, lengths=(21,), want_lse=False).lse_TH is None
