"""Attention of several prompts in one call, on a CUDA device, checked before it serves.

Shapes: T tokens of all prompts, H query heads, G KV heads, D head size.
"""

from dataclasses import replace
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

from shared.model.current_device import computing_on
from shared.model.device_attention import DeviceAttention, PackKernel
from shared.model.exact_attention import HeadShape
from shared.model.kernel_check import fault_of
from shared.model.plain_attention import plain_attention
from shared.model.probe import AttentionChoice, Rejection

_CHECKED_LENGTHS = (1, 77, 200, 2, 333)


class SdpaFlashPackKernel:
    """FlashAttention 2 as PyTorch brings it, in its form for sequences of several lengths."""

    name = "sdpa_flash_varlen"

    def attend(
        self,
        q_THD: Tensor,
        k_TGD: Tensor,
        v_TGD: Tensor,
        *,
        lengths: tuple[int, ...],
        want_lse: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """See `PackKernel.attend`."""
        bounds, longest = _bounds(lengths, q_THD.device), max(lengths)
        # The public function needs a newer PyTorch to take fewer KV heads than query heads.
        found = torch.ops.aten._flash_attention_forward(  # noqa: SLF001
            *(q_THD, k_TGD, v_TGD),
            *(bounds, bounds, longest, longest),
            dropout_p=0.0,
            is_causal=True,
            return_debug_mask=False,
        )
        return found[0], found[1].t() if want_lse else None


def with_packs(
    choice: AttentionChoice,
    shape: HeadShape,
    device: torch.device,
    *,
    kernel: PackKernel | None = None,
) -> AttentionChoice:
    """The choice with a kernel for packs of prompts, if it is right on this device.

    Otherwise the choice tells the reason, and every prompt of a pack has a call of its own.

    Args:
        choice: what was chosen for prompts alone; no CUDA path is left as it is.
        shape: of the model's heads.
        device: where they will run.
        kernel: the candidate; None takes PyTorch's.
    """
    if not isinstance(choice.backend, DeviceAttention):
        return choice
    candidate = kernel or SdpaFlashPackKernel()
    with computing_on(device):
        reason = _fault(candidate, shape, device)
    if reason is not None:
        return replace(choice, rejected=(*choice.rejected, Rejection(candidate.name, reason)))
    return replace(choice, backend=choice.backend.with_packs(candidate))


def _fault(kernel: PackKernel, shape: HeadShape, device: torch.device) -> str | None:
    """Why a kernel's results cannot be used; None: they are right."""
    lengths = tuple(min(tokens, shape.max_tokens) for tokens in _CHECKED_LENGTHS)
    generator = torch.Generator(device).manual_seed(sum(lengths))
    q, k, v = (
        torch.randn((sum(lengths), heads, shape.head_dim), generator=generator, device=device).to(
            shape.dtype
        )
        for heads in (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
    )

    def wanted() -> tuple[Tensor, Tensor]:
        prompts = zip(*(torch.split(x, list(lengths)) for x in (q, k, v)), strict=True)
        outs, lses = zip(*(plain_attention(*prompt) for prompt in prompts), strict=True)
        return torch.cat(outs), torch.cat(lses)

    return fault_of(lambda: kernel.attend(q, k, v, lengths=lengths, want_lse=True), wanted=wanted)


@lru_cache(maxsize=1)  # the layers of a pass ask for the same
def _bounds(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    """Where prompts begin and end, int32, without waiting for the device."""
    ends = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    if device.type != "cuda":
        return ends
    return ends.pin_memory().to(device, non_blocking=True)
