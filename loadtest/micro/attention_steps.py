"""Whole decode steps with FlashInfer's dense layers beside ours: same engine, rows and pages."""

from collections.abc import Callable
from typing import Any

import torch

from decode_service.engine.attention import TorchDecodeAttention
from decode_service.engine.backends import FLASHINFER, TRITON
from decode_service.engine.batched.dense_attention import DenseMaker, by_triton, flashinfer_maker
from decode_service.engine.batched.runner import BatchRunner, StepWays
from decode_service.engine.runner import DecodeRunner
from loadtest.micro.kernel_parity import relative_distance
from loadtest.micro.models import random_on_device
from loadtest.micro.step_parity import FARTHER, LIMIT, Float32Twin
from loadtest.micro.step_rows import GROWTH, CaseRows
from loadtest.micro.step_shapes import StepCase
from loadtest.micro.step_times import time_steps
from shared.errors import InternalError
from shared.model.transformer import Transformer

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
        JSON: `logits` (see `compare`), and by backend what `time_steps` gives, in turn.

    Raises:
        InternalError: see `compare`.
    """
    model = random_on_device(case.config, device=device, dtype=torch.bfloat16)
    held = CaseRows(model, case)
    runners = make_both(model, held, case)
    exact = Float32Twin(model, held, rows=1)
    found: dict[str, Any] = {"logits": compare(held, runners, exact=exact, steps=_EDGE_STEPS)}
    del exact
    torch.cuda.empty_cache()
    progress(f"logits off float32: {found['logits']}")
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
            ways=StepWays(dense=dense),
        )
        for name, dense in makers.items()
    }


def compare(
    held: CaseRows, runners: dict[str, BatchRunner], *, exact: Float32Twin, steps: int
) -> dict[str, dict[str, float]]:
    """Largest errors of the first row's logits against float32, by arm and backend.

    Args:
        held: the rows.
        runners: from `make_both`; they take the same tokens.
        exact: the PyTorch path in float32 over the first row.
        steps: how many.

    Raises:
        InternalError: with FlashInfer they are more than `FARTHER` times as far off as with ours.
    """
    worst = {}
    for arm in held.arms():
        rows, errors = held.rows(arm), dict.fromkeys(runners, 0.0)
        for _ in range(steps):
            wanted_1V = exact.logits(rows[:1])
            for name, runner in runners.items():
                computed = runner.compute(rows)
                off = relative_distance(computed.output.logits_BV[:1], wanted_1V.double())
                errors[name] = max(off, errors[name])
            limit = max(LIMIT, FARTHER * errors[TRITON])
            if not errors[FLASHINFER] < limit:
                raise InternalError(
                    f"{arm}: logits are off float32 by {errors}, {limit:.3g} is allowed: "
                    "FlashInfer is wrong on this device, so its speed means nothing; report this "
                    "with the versions"
                )
            computed.accept(computed.output.logits_BV[: len(rows)].argmax(dim=-1).tolist())
        worst[arm] = errors
    return worst
