"""Kernels are compared and timed before one serves; attention by length follows the choice."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

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

CPU = torch.device("cpu")
SHAPE = HeadShape(num_heads=6, num_kv_heads=2, head_dim=16, dtype=torch.float32, max_tokens=1 << 20)


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

    def padded(self, tokens: int) -> int:
        return tokens + 3

    def attend(
        self, q_PHD: Tensor, k_PGD: Tensor, v_PGD: Tensor, *, want_lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        if self.error is not None:
            raise self.error
        if self.longest is not None and q_PHD.shape[0] - 3 > self.longest:
            raise RuntimeError("out of memory")
        self.lengths.append(q_PHD.shape[0] - 3)
        if q_PHD.shape[0] > 400:  # only timed
            return q_PHD, None
        out, lse = plain_attention(q_PHD, k_PGD, v_PGD)
        return out + self.wrong_out, lse + self.wrong_lse if want_lse else None


def choose(*kernels: Kernel, shape: HeadShape = SHAPE):
    def timed(work):
        before = {k.name: len(k.lengths) for k in kernels}
        work()
        (ran,) = [k for k in kernels if len(k.lengths) > before[k.name]]
        return ran.speed[ran.lengths[-1]]

    return choose_kernels(shape, CPU, kernels=kernels, timer=timed)


def test_the_fastest_serves_length_by_length():
    slow_start = Kernel("a", {1024: 3.0, 4096: 2.0, 16384: 1.0})
    slow_end = Kernel("b", {1024: 2.0, 4096: 3.0, 16384: 4.0})
    never = Kernel("c", {1024: 4.0, 4096: 8.0, 16384: 8.0})
    choice = choose(slow_start, slow_end, never)
    assert [(r.up_to, r.kernel) for r in choice.ranges] == [(2048, slow_end), (None, slow_start)]
    assert choice.seconds["c"] == never.speed
    assert choice.rejected == {"c": "slower than b: 2.00 times its time at 1024 tokens"}
    assert DeviceAttention(choice.ranges).name == "b to 2048 tokens, a above"


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
        (Kernel("x", wrong_out=1.0), "its output is"),
        (Kernel("x", wrong_out=torch.nan), "its output is nan off float32"),
        (Kernel("x", wrong_lse=1.0), "its log-sum-exp is"),
    ],
    ids=["missing", "raises", "raises nothing said", "wrong", "nan", "wrong log-sum-exp"],
)
def test_a_kernel_that_does_not_work_is_rejected(broken: Kernel, reason: str):
    works = Kernel("a", dict.fromkeys((1024, 4096, 16384), 1.0))
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
    assert set(choice.seconds) == {"b"}


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
    seen = attention.prompts(q, k, v, lengths=(21,), want_lse=True)
    wanted, lse = plain_attention(q[:21], k[:21], v[:21])
    torch.testing.assert_close(seen.out_THD, wanted, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(seen.lse_TH, lse, atol=1e-6, rtol=1e-5)
    assert attention.prompts(q, k, v, lengths=(21,), want_lse=False).lse_TH is None
