"""Several prompts in one call of attention: checked before it serves, and equal to one by one."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from shared.model.attention import TorchAttention
from shared.model.device_attention import DeviceAttention, KernelRange
from shared.model.exact_attention import HeadShape
from shared.model.pack_attention import SdpaFlashPackKernel, with_packs
from shared.model.plain_attention import PlainKernel, plain_attention
from shared.model.probe import AttentionChoice
from tests.support.packs import PlainPackKernel

CPU = torch.device("cpu")
SHAPE = HeadShape(num_heads=4, num_kv_heads=2, head_dim=16, dtype=torch.float32, max_tokens=400)


def alone(step: int = 16) -> DeviceAttention:
    return DeviceAttention((KernelRange(up_to=None, kernel=PlainKernel(step)),))


def tensors(tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    q, k, v = (torch.randn(tokens, heads, 16, generator=generator) for heads in (4, 2, 2))
    return q, k, v


@pytest.mark.parametrize("by_pack", [False, True], ids=["one by one", "in one call"])
@pytest.mark.parametrize("lengths", [(1, 1), (5, 1, 33), (16, 32), (17,)])
def test_prompts_see_only_themselves(lengths: tuple[int, ...], by_pack: bool) -> None:
    attention = alone().with_packs(PlainPackKernel()) if by_pack else alone()
    total = sum(lengths)
    room = attention.padded(*lengths)
    assert room == (32 if lengths == (17,) else total)
    q, k, v = (torch.nn.functional.pad(x, (0, 0, 0, 0, 0, room - total)) for x in tensors(total))
    seen = attention.prompts(q, k, v, lengths=lengths, want_lse=True)
    assert seen.lse_TH is not None
    first = 0
    for tokens in lengths:
        own = slice(first, first + tokens)
        first = own.stop
        out_THD, lse_TH = plain_attention(q[own], k[own], v[own])
        torch.testing.assert_close(seen.out_THD[own], out_THD)
        torch.testing.assert_close(seen.lse_TH[own], lse_TH)
    assert first == total == seen.out_THD.shape[0]
    assert attention.prompts(q, k, v, lengths=lengths, want_lse=False).lse_TH is None


def test_a_right_kernel_serves() -> None:
    choice = AttentionChoice(backend=alone(), rejected=())
    packed = with_packs(choice, SHAPE, CPU, kernel=PlainPackKernel())
    assert packed.backend.name == "plain, packs by plain_pack"
    assert packed.rejected == ()
    assert choice.backend.name == "plain"


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda out, lse: (out * 1.1, lse), "its output is 0.1 off float32"),
        (lambda out, lse: (out, lse + 1), "its log-sum-exp is"),
        (lambda out, _: (out, None), "AssertionError: it gives no log-sum-exp"),
        (lambda out, lse: (out[:-1], lse), "RuntimeError"),
    ],
)
def test_a_wrong_kernel_does_not(
    spoil: Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]], reason: str
) -> None:
    class Spoiled(PlainPackKernel):
        def attend(
            self, *tensors: Tensor, lengths: tuple[int, ...], want_lse: bool
        ) -> tuple[Tensor, Tensor | None]:
            out, lse = super().attend(*tensors, lengths=lengths, want_lse=want_lse)
            assert lse is not None
            return spoil(out, lse)

    choice = AttentionChoice(backend=alone(), rejected=())
    kept = with_packs(choice, SHAPE, CPU, kernel=Spoiled())
    assert kept.backend is choice.backend
    (rejection,) = kept.rejected
    assert rejection.name == "plain_pack"
    assert reason in rejection.reason


def test_the_candidate_needs_a_device() -> None:
    kept = with_packs(AttentionChoice(backend=alone(), rejected=()), SHAPE, CPU)
    (rejection,) = kept.rejected
    assert rejection.name == SdpaFlashPackKernel.name == "sdpa_flash_varlen"


def test_other_paths_are_left_alone() -> None:
    choice = AttentionChoice(backend=TorchAttention(), rejected=())
    assert with_packs(choice, SHAPE, CPU) is choice
