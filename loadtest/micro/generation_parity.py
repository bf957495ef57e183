"""Whether a whole generation by kernels gives the PyTorch path's tokens, before its time counts.

Shapes: B rows, V vocabulary.
"""

import torch
from torch import Tensor

from decode_service.engine.attention import TorchDecodeAttention
from decode_service.engine.batched.runner import BatchRunner
from decode_service.engine.runner import DecodeRunner
from decode_service.engine.sequence import Sequence
from loadtest.micro.generation_rows import GenerationPlan, GenerationRows
from loadtest.micro.step_parity import MOST_FLIPS
from loadtest.micro.step_rows import CHOOSING
from shared.errors import InternalError
from shared.model.transformer import Transformer

NEAR_TIE = 1e-3
"""Where the two highest logits are closer, either token is right."""


def check_generation(model: Transformer, plan: GenerationPlan) -> dict[str, dict[str, int]]:
    """Generates on both paths, side by side, greedily.

    Where the kernels draw another token they are given the PyTorch path's, so that every step of
    either path has the same past.

    Args:
        model: the decoder, in float32.
        plan: sizes.

    Returns:
        By arm: `tokens` that were compared, `near_ties` of the two highest logits among those that
        differ, and `page_ties`: others, where a choice of pages fell otherwise.

    Raises:
        InternalError: more tokens differ than ties of pages explain (`MOST_FLIPS` of
            `step_parity`; none where everything is read), or one path read other counts of slots.
    """
    # Both paths' rows have pages of their own.
    held = GenerationRows(model, plan, copies=2)
    by_row = DecodeRunner(model, held.cache, attention=TorchDecodeAttention())
    together = BatchRunner(
        model, held.cache, by_row=by_row, max_batch=plan.batch, max_tokens=plan.context
    )
    return {arm: _compare(held, arm, by_row, together) for arm in held.arms}


def _compare(
    held: GenerationRows, arm: str, by_row: DecodeRunner, together: BatchRunner
) -> dict[str, int]:
    plan = held.plan
    near = flips = 0
    with held.rows(arm) as rows:
        slow, fast = rows[: plan.batch], rows[plan.batch :]
        for _ in range(plan.steps):
            wanted = by_row.forward(slow)
            drawn = [token.token_id for token in together.step(fast)]
            best = wanted.logits_BV.argmax(dim=-1).tolist()
            gaps = _gaps(wanted.logits_BV)
            for row, (ours, theirs) in enumerate(zip(drawn, best, strict=True)):
                if ours != theirs:
                    near += gaps[row] < NEAR_TIE
                    flips += gaps[row] >= NEAR_TIE
                    fast[row].generated[-1] = theirs
            wanted.accept(best)
        _require_equal_reads(arm, slow, fast)
    tokens = plan.batch * plan.steps
    if flips > (max(1, MOST_FLIPS * tokens) if arm in CHOOSING else 0):
        raise InternalError(
            f"{arm}: {flips} of {tokens} tokens are not the PyTorch path's, and no near ties: the "
            "kernels are wrong on this device, so their speed means nothing; report this with the "
            "Triton version"
        )
    return {"tokens": tokens, "near_ties": near, "page_ties": flips}


def _gaps(logits_BV: Tensor) -> list[float]:
    """Distance of each row's two highest logits."""
    top_B2 = torch.topk(logits_BV, 2, dim=-1).values
    gaps: list[float] = (top_B2[:, 0] - top_B2[:, 1]).tolist()
    return gaps


def _require_equal_reads(arm: str, slow: list[Sequence], fast: list[Sequence]) -> None:
    got, wanted = ([row.attended for row in rows] for rows in (fast, slow))
    if got != wanted:
        raise InternalError(
            f"{arm}: {got} slots were read, by the PyTorch path {wanted}: the plan is wrong; "
            "report this"
        )
