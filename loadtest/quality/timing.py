"""Time to the first logits of every arm, arms alternating with full in one process."""

import time
from collections.abc import Sequence

import torch

from loadtest.quality.arms import Arm, full_arm
from loadtest.quality.runner import Setup
from loadtest.quality.store import Timing
from prefill_service.engine.evaluate import rank_and_prefill
from prefill_service.ranking.base import SideInputs


def time_arms(
    setup: Setup, arms: Sequence[Arm], *, token_ids: Sequence[int], repeats: int, run: int
) -> list[Timing]:
    """Times one prompt under full and every arm that needs no oracle.

    Args:
        setup: the model.
        arms: what to time, beside full.
        token_ids: the prompt; real text, since constant ids make degenerate scores.
        repeats: timed runs of each arm, after one that warms up.
        run: number of the run that the results belong to.
    """
    timed = [full_arm(setup.base), *(arm for arm in arms if not arm.needs_oracle)]
    rounds = [[_seconds(setup, arm, token_ids) for arm in timed] for _ in range(repeats + 1)][1:]
    return [
        Timing(
            run=run,
            length=len(token_ids),
            arm=arm.name,
            rate=arm.rate,
            seconds=[seconds[index] for seconds in rounds],
            ratio_to_full=[seconds[index] / seconds[0] for seconds in rounds],
        )
        for index, arm in enumerate(timed)
    ]


def _seconds(setup: Setup, arm: Arm, token_ids: Sequence[int]) -> float:
    _synchronise(setup)
    started = time.perf_counter()
    rank_and_prefill(
        setup.model,
        attention=setup.attention,
        token_ids=token_ids,
        params=arm.params,
        side=SideInputs(draft=setup.draft),
    )
    _synchronise(setup)
    return time.perf_counter() - started


def _synchronise(setup: Setup) -> None:
    if setup.model.device.type == "cuda":
        torch.cuda.synchronize(setup.model.device)
