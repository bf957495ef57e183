"""Whether a whole generation by kernels gives the PyTorch path's tokens, before its time counts.

Shapes: B rows, V vocabulary.
"""

import torch
from torch import Tensor

from decode_service.engine.attention import TorchDecodeAttention
from decode_service.engine.batched.runner import BatchRunner
from decode_service.engine.runner import DecodeRunner
from loadtest.micro.generation_rows import GenerationPlan, GenerationRows
from shared.errors import InternalError
from shared.model.transformer import Transformer

NEAR_TIE = 1e-3
"""Where the two highest logits are closer, either token is right, and what follows may differ."""


def check_generation(model: Transformer, plan: GenerationPlan) -> dict[str, dict[str, int]]:
    """Generates on both paths, side by side, greedily.

    Args:
        model: the decoder, in float32.
        plan: sizes.

    Returns:
        By arm: `tokens`, how many were compared, and `near_ties`, rows that were no longer
        compared from a near-tie on.

    Raises:
        InternalError: a token differs that is no near-tie, or one path read other counts of slots.
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
    with held.rows(arm) as rows:
        slow, fast = rows[: plan.batch], rows[plan.batch :]
        equal, compared = [True] * plan.batch, 0
        for _ in range(plan.steps):
            wanted = by_row.forward(slow)
            drawn = [token.token_id for token in together.step(fast)]
            best = wanted.logits_BV.argmax(dim=-1).tolist()
            gaps = _gaps(wanted.logits_BV)
            for row, same in enumerate(equal):
                if same and drawn[row] != best[row]:
                    _require_near_tie(arm, fast[row].steps, gaps[row])
                    equal[row] = False
            compared += sum(equal)
            wanted.accept(best)
        if any(a.attended != b.attended for a, b in zip(slow, fast, strict=True)):
            raise InternalError(
                f"{arm}: {[row.attended for row in fast]} slots were read, by the PyTorch path "
                f"{[row.attended for row in slow]}: the plan is wrong; report this"
            )
    return {"tokens": compared, "near_ties": equal.count(False)}


def _gaps(logits_BV: Tensor) -> list[float]:
    """Distance of each row's two highest logits."""
    top_B2 = torch.topk(logits_BV, 2, dim=-1).values
    gaps: list[float] = (top_B2[:, 0] - top_B2[:, 1]).tolist()
    return gaps


def _require_near_tie(arm: str, step: int, gap: float) -> None:
    if gap >= NEAR_TIE:
        raise InternalError(
            f"{arm}: token {step} of an answer is not the PyTorch path's, whose two highest logits "
            f"are {gap:.3g} apart: the kernels are wrong on this device, so their speed means "
            "nothing; report this with the Triton version"
        )
