"""Whether a step by kernels gives what the PyTorch path gives, before its time counts."""

from dataclasses import replace

from torch import Tensor

from decode_service.engine.attention import TorchDecodeAttention
from decode_service.engine.batched.runner import BatchRunner
from decode_service.engine.kv_cache import PagedKvCache, SequencePages, page_table
from decode_service.engine.runner import DecodeRunner
from decode_service.engine.sequence import Sequence
from loadtest.micro.models import in_float32
from loadtest.micro.step_rows import GROWTH, CaseRows
from loadtest.micro.step_shapes import StepCase
from shared.errors import InternalError
from shared.model.transformer import Transformer

LIMIT = 1e-4
"""Largest error of float32 logits against the PyTorch path."""

FARTHER = 2.0
"""How many times as far from float32 as the PyTorch path the kernels may be in bfloat16, where both
round after every operation, not at the same places, and near ties of a choice fall either way."""


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


class Float32Twin:
    """The PyTorch path in float32 over copies of the weights and of some rows' pages.

    Args:
        model: the decoder.
        held: the case's memory.
        rows: how many rows, from the first on.
    """

    def __init__(self, model: Transformer, held: CaseRows, *, rows: int) -> None:
        self._held = held
        width = held.pages_of_a_row
        cache = held.cache
        twin = PagedKvCache(
            replace(cache.geometry, dtype="float32"),
            whole_layers=cache.whole_layers,
            pages_front=rows * width,
            pages_rest=rows * width,
            device=cache.device,
        )
        for group, order in held.page_order.items():
            taken = order[: rows * width].to(cache.device)
            own, theirs = twin.pools[group].memory, cache.pools[group].memory
            for layer in range(len(own)):
                own[layer].copy_(theirs[layer][:, taken])
        self._runner = DecodeRunner(in_float32(model), twin, attention=TorchDecodeAttention())

    def logits(self, rows: list[Sequence]) -> Tensor:
        """Logits of a step of the first rows; the rows are left alone."""
        return self._runner.forward(
            [self._copy(row, number) for number, row in enumerate(rows)]
        ).logits_BV

    def _copy(self, row: Sequence, number: int) -> Sequence:
        width, pages = self._held.pages_of_a_row, row.prompt.pages
        first = number * width
        front, rest = (
            page_table(range(first, first + len(held.pages)), self._held.cache.device)
            for held in (pages.front, pages.rest)
        )
        prompt = replace(row.prompt, pages=SequencePages(front=front, rest=rest))
        return replace(row, prompt=prompt, generated=list(row.generated))


class StepCheck:
    """Compares logits of some rows of every arm.

    Args:
        model: the decoder.
        held: the case's memory.
        case: its sizes.
        checked_rows: rows that the PyTorch path computes as well.
        exact: float32, to weigh both paths by; None where they compute in it.
    """

    def __init__(
        self,
        model: Transformer,
        held: CaseRows,
        case: StepCase,
        *,
        checked_rows: int,
        exact: Float32Twin | None,
    ) -> None:
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
            exact_BV = self._exact.logits(few) if self._exact is not None else None
            got = self._together.compute(rows)
            logits_BV = got.output.logits_BV[: len(rows)]
            errors = {"torch": _error(logits_BV[: len(few)], wanted.logits_BV)}
            if exact_BV is not None:
                errors["float32"] = _error(logits_BV[: len(few)], exact_BV)
                errors["torch_float32"] = _error(wanted.logits_BV, exact_BV)
            worst = {name: max(error, worst.get(name, 0.0)) for name, error in errors.items()}
            self._require(arm, worst)
            _require_equal_reads(arm, got.attended[: len(few)].tolist(), wanted.attended)
            got.accept(logits_BV.argmax(dim=-1).tolist())
        return worst

    def _require(self, arm: str, errors: dict[str, float]) -> None:
        exact = "float32" in errors
        limit = FARTHER * errors["torch_float32"] if exact else LIMIT
        if not errors["float32" if exact else "torch"] < limit:
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
