"""Whole decode steps with FlashInfer's dense layers beside ours: same engine, rows and pages."""

from collections.abc import Callable
from typing import Any

import torch

from decode_service.engine.attention import TorchDecodeAttention
from decode_service.engine.backends import FLASHINFER, TRITON
from decode_service.engine.batched.dense_attention import DenseMaker, by_triton, flashinfer_maker
from decode_service.engine.batched.runner import BatchRunner
from decode_service.engine.runner import DecodeRunner
from loadtest.micro.kernel_parity import relative_distance
from loadtest.micro.models import random_on_device
from loadtest.micro.step_rows import GROWTH, CaseRows
from loadtest.micro.step_shapes import StepCase
from loadtest.micro.step_times import time_steps
from shared.errors import InternalError
from shared.model.transformer import Transformer

FARTHEST = 0.05
"""Largest difference of logits from ours, relative: both in bfloat16, through all layers."""

_EDGE_STEPS = 18


def time_both(
    case: StepCase, *, device: torch.device, repeats: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Compares logits of every arm over page edges, then times; backends take turns.

    Args:
        case: sizes.
        device: a CUDA device with FlashInfer installed.
        repeats: turns of each arm within a turn of a backend, of which each has two.
        progress: is told what happens, one line at a time.

    Returns:
        JSON: `logits` (largest difference by arm), and by backend what `time_steps` gives, in turn.

    Raises:
        InternalError: logits differ by more than two 16-bit paths do.
    """
    model = random_on_device(case.config, device=device, dtype=torch.bfloat16)
    held = CaseRows(model, case)
    runners = make_both(model, held, case)
    found: dict[str, Any] = {"logits": compare(held, runners, steps=_EDGE_STEPS)}
    progress(f"logits of flashinfer off ours: {found['logits']}")
    for name in (*runners, *runners):
        arms = {arm: held.rows(arm) for arm in held.arms()}
        times = time_steps(runners[name], arms, repeats=repeats)
        found.setdefault(name, []).append(times)
        progress(f"{name}: {times['step_ms']}, on the device {times['device_ms']}")
    return found


def make_both(model: Transformer, held: CaseRows, case: StepCase) -> dict[str, BatchRunner]:
    """Runners over one cache, by backend."""
    makers: dict[str, DenseMaker] = {
        TRITON: by_triton,
        FLASHINFER: flashinfer_maker(
            model.config, model.dtype, max_rows=case.batch, device=model.device
        ),
    }
    by_row = DecodeRunner(model, held.cache, attention=TorchDecodeAttention())
    return {
        name: BatchRunner(
            model,
            held.cache,
            by_row=by_row,
            max_batch=case.batch,
            max_tokens=case.context + GROWTH,
            dense=dense,
        )
        for name, dense in makers.items()
    }


def compare(held: CaseRows, runners: dict[str, BatchRunner], *, steps: int) -> dict[str, float]:
    """Largest difference of a batch's logits, by arm; both runners take the same tokens.

    Raises:
        InternalError: it is more than two 16-bit paths differ by.
    """
    worst = {}
    for arm in held.arms():
        rows, off = held.rows(arm), 0.0
        for _ in range(steps):
            ours_BV = runners[TRITON].compute(rows).output.logits_BV[: len(rows)].clone()
            computed = runners[FLASHINFER].compute(rows)
            theirs_BV = computed.output.logits_BV[: len(rows)]
            off = max(off, relative_distance(theirs_BV, ours_BV.double()))
            if not off < FARTHEST:
                raise InternalError(
                    f"{arm}: logits with flashinfer are {off:.3g} off ours, {FARTHEST} is allowed: "
                    "one of the two is wrong on this device; report this with the versions"
                )
            computed.accept(ours_BV.argmax(dim=-1).tolist())
        worst[arm] = off
    return worst
