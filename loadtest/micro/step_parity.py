"""Whether a step by kernels gives what the PyTorch path gives, before its time counts."""

import torch

from decode_service.engine.attention import TorchDecodeAttention
from decode_service.engine.batched.runner import BatchRunner
from decode_service.engine.kv_cache import PagedKvCache
from decode_service.engine.runner import DecodeRunner
from loadtest.micro.kernel_parity import relative_error
from loadtest.micro.step_rows import GROWTH, CaseRows
from loadtest.micro.step_shapes import StepCase
from shared.errors import InternalError
from shared.model.transformer import Transformer

LIMITS = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Largest error of logits, relative to the largest logit. In bfloat16 both paths round after every
operation, and not at the same places."""


def make_runners(
    model: Transformer, cache: PagedKvCache, case: StepCase
) -> tuple[DecodeRunner, BatchRunner]:
    """The PyTorch path, and the one by kernels, over one cache."""
    by_row = DecodeRunner(model, cache, attention=TorchDecodeAttention())
    together = BatchRunner(
        model,
        cache,
        by_row=by_row,
        max_batch=case.batch,
        max_tokens=case.context + GROWTH,
    )
    return by_row, together


def check_steps(
    model: Transformer, held: CaseRows, case: StepCase, *, steps: int, checked_rows: int
) -> dict[str, float]:
    """Compares logits of some rows of every arm over some steps.

    Args:
        model: the decoder.
        held: the case's memory.
        case: its sizes.
        steps: steps of each arm.
        checked_rows: rows that the PyTorch path computes as well.

    Returns:
        The largest relative error of each arm.

    Raises:
        InternalError: an error is above the limit, or the two did not read equally much.
    """
    by_row, together = make_runners(model, held.cache, case)
    errors = {}
    for arm in held.arms():
        rows, worst = held.rows(arm), 0.0
        for _ in range(steps):
            wanted = by_row.forward(rows[:checked_rows])
            got = together.compute(rows)
            logits_BV = got.output.logits_BV[: len(rows)]
            worst = max(worst, relative_error(logits_BV[:checked_rows], wanted.logits_BV))
            if not worst < LIMITS[model.dtype]:
                raise InternalError(
                    f"{arm}: logits are {worst:.3g} off the PyTorch path's, "
                    f"{LIMITS[model.dtype]} is allowed: the kernels are wrong on this device, so "
                    "their speed means nothing; report this with the Triton version"
                )
            if got.attended[:checked_rows].tolist() != wanted.attended:
                raise InternalError(
                    f"{arm}: {got.attended[:checked_rows].tolist()} slots were read, "
                    f"{wanted.attended} by the PyTorch path: the plan is wrong; report this"
                )
            got.accept(logits_BV.argmax(dim=-1).tolist())
        errors[arm] = worst
    return errors
