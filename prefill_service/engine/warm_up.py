"""A first prompt that nobody waits for, so that no caller pays for first-time work."""

import torch

from prefill_service.engine.job import PromptRequest
from prefill_service.engine.plan import PromptPlan
from prefill_service.engine.runner import PrefillRunner
from prefill_service.engine.services import Planner
from shared.types.handoff import HandoffKey
from shared.types.options import RequestOptions
from shared.types.sampling import SamplingParams, StopConditions

_CPU_TOKENS = 32
"""Enough for every kind of work that a prompt makes on a CPU."""

_DEVICE_TOKENS = 2048
"""Enough to be pruned by every profile, so that kernels compile."""


def warm_up_tokens(device: str) -> int:
    """Tokens of the first prompt on a device."""
    return _DEVICE_TOKENS if device.startswith("cuda") else _CPU_TOKENS


def warm_up(runner: PrefillRunner, *, planner: Planner, tokens: int) -> None:
    """Runs a prompt of `tokens` tokens and forgets it; blocks."""
    request = PromptRequest(
        key=HandoffKey("warm-up"),
        token_ids=(0,) * tokens,
        sampling=SamplingParams(),
        stop=StopConditions(max_tokens=1),
        options=RequestOptions(),
        targets=(),
    )
    runner.run(
        token_ids=request.token_ids,
        plan=planner(request),
        observer=_Forget(),
        stop=lambda: False,
    )


class _Forget:
    """An observer that keeps nothing."""

    def settled(self, plan: PromptPlan) -> None:
        pass

    def kv_final(
        self, *, layer: int, first_slot: int, keys_NGD: torch.Tensor, values_NGD: torch.Tensor
    ) -> None:
        pass

    def positions_final(self, *, layout: int, positions_RN: torch.Tensor) -> None:
        pass

    def progress(self, *, done_tokens: int) -> None:
        pass
