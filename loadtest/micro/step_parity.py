"""Whether a step by kernels gives what the PyTorch path gives, before its time counts."""

from dataclasses import replace

import torch
from torch import Tensor

from decode_service.engine.attention import TorchDecodeAttention
from decode_service.engine.batched.runner import BatchRunner
from decode_service.engine.kv_cache import PagedKvCache
from decode_service.engine.runner import DecodeRunner
from loadtest.micro.step_rows import GROWTH, CaseRows
from loadtest.micro.step_shapes import StepCase, in_float32
from shared.errors import InternalError
from shared.model.transformer import Transformer

LIMITS = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Largest error of logits against the PyTorch path. In bfloat16 both round after every operation,
and not at the same places, so that neither is the truth; see `FARTHER`."""

FARTHER = 1.25
"""How many times the PyTorch path's distance from float32 that of the kernels may be, in bfloat16."""


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


def float32_runner(model: Transformer, cache: PagedKvCache) -> DecodeRunner:
    """The PyTorch path in float32 over copies of weights and pages."""
    twin = PagedKvCache(
        replace(cache.geometry, dtype="float32"),
        whole_layers=cache.whole_layers,
        pages_front=cache.pools[cache.group_of(0)].pages.num_pages,
        pages_rest=cache.pools[cache.group_of(model.config.num_layers - 1)].pages.num_pages,
        device=cache.device,
    )
    for group, pool in cache.pools.items():
        twin.pools[group].memory.copy_(pool.memory)
    return DecodeRunner(in_float32(model), twin, attention=TorchDecodeAttention())


class StepCheck:
    """Compares logits of some rows of every arm.

    Args:
        model: the decoder.
        held: the case's memory.
        case: its sizes.
        checked_rows: rows that the PyTorch path computes as well.
        exact: the PyTorch path in float32, to weigh both by; None: they are weighed by each other.
    """

    def __init__(
        self,
        model: Transformer,
        held: CaseRows,
        case: StepCase,
        *,
        checked_rows: int,
        exact: DecodeRunner | None = None,
    ) -> None:
        self._dtype = model.dtype
        self._held = held
        self._by_row, self._together = make_runners(model, held.cache, case)
        self._exact = exact
        self._checked = checked_rows

    def run(self, *, steps: int) -> dict[str, dict[str, float]]:
        """Takes every arm through some steps.

        Returns:
            By arm the largest errors: `torch`, of the kernels against the PyTorch path; and
            where float32 is there `float32` and `torch_float32`, of either against it.

        Raises:
            InternalError: an error is above its limit, or the two did not read equally much.
        """
        return {arm: self._run_arm(arm, steps) for arm in self._held.arms()}

    def _run_arm(self, arm: str, steps: int) -> dict[str, float]:
        rows, worst = self._held.rows(arm), dict[str, float]()
        for _ in range(steps):
            few = rows[: self._checked]
            wanted = self._by_row.forward(few)
            exact = self._exact.forward(few) if self._exact is not None else None
            got = self._together.compute(rows)
            logits_BV = got.output.logits_BV[: len(rows)]
            errors = {"torch": _error(logits_BV[: len(few)], wanted.logits_BV)}
            if exact is not None:
                errors["float32"] = _error(logits_BV[: len(few)], exact.logits_BV)
                errors["torch_float32"] = _error(wanted.logits_BV, exact.logits_BV)
            worst = {name: max(error, worst.get(name, 0.0)) for name, error in errors.items()}
            self._require(arm, worst)
            _require_equal_reads(arm, got.attended[: len(few)].tolist(), wanted.attended)
            got.accept(logits_BV.argmax(dim=-1).tolist())
        return worst

    def _require(self, arm: str, errors: dict[str, float]) -> None:
        limit = LIMITS[self._dtype]
        if "float32" in errors:
            limit = max(limit, FARTHER * errors["torch_float32"])
        error = errors.get("float32", errors["torch"])
        if not error < limit:
            raise InternalError(
                f"{arm}: logits are off by {errors}, {limit:.3g} is allowed: the kernels are wrong "
                "on this device, so their speed means nothing; report this with the Triton version"
            )


def _error(got: Tensor, wanted: Tensor) -> float:
    """Length of the difference over length of the wanted vector; the worst row's."""
    got, wanted = got.double(), wanted.double()
    return float(((got - wanted).norm(dim=1) / wanted.norm(dim=1)).max())


def _require_equal_reads(arm: str, got: list[int], wanted: list[int]) -> None:
    if got != wanted:
        raise InternalError(
            f"{arm}: {got} slots were read, {wanted} by the PyTorch path: the plan is wrong; "
            "report this"
        )
