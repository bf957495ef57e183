"""Whether a step by kernels gives what the PyTorch path gives, before its time counts."""

from dataclasses import replace

from torch import Tensor

from decode_service.engine.attention import TorchDecodeAttention
from decode_service.engine.batched.runner import BatchRunner
from decode_service.engine.kv_cache import PagedKvCache, SequencePages, page_table
from decode_service.engine.runner import DecodeRunner
from decode_service.engine.sequence import Sequence
from loadtest.micro.models import in_float32
from loadtest.micro.step_rows import CHOOSING, GROWTH, CaseRows
from loadtest.micro.step_shapes import StepCase
from shared.errors import InternalError
from shared.model.transformer import Transformer

LIMIT = 1e-4
"""Largest error of float32 logits against the PyTorch path."""

MOST_FLIPS = 0.03
"""Share of an arm's row steps, one at least, in which the kernels may choose another page.

They rank float16 logits and the PyTorch path float32 ones, so a near tie of two pages may fall
either way; the tiny model spreads its attention so evenly that such a page shows in the logits.
"""

FARTHER = 2.0
"""How many times as far from float32 as the PyTorch path the kernels may be in bfloat16, where both
round after every operation, not at the same places, and near ties of a choice fall either way. A
page more or less moves logits by up to four times what rounding does, so that one step says little:
the farthest of either in several is compared."""

CHOICES = 6
"""Steps over which that is done; each chooses anew."""


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
            where float32 is there `float32` and `torch_float32`, of either against it. Where it
            is not, row steps that chose another page are left out and counted as `near_ties`.

        Raises:
            InternalError: an error is above its limit, or the two did not read equally much.
        """
        return {arm: self._run_arm(arm, steps) for arm in self._held.arms()}

    def _run_arm(self, arm: str, steps: int) -> dict[str, float]:
        rows, worst = self._held.rows(arm), dict[str, float]()
        flips = 0
        for _ in range(steps):
            few = rows[: self._checked]
            wanted = self._by_row.forward(few)
            exact_BV = self._exact.logits(few) if self._exact is not None else None
            got = self._together.compute(rows)
            logits_BV = got.output.logits_BV[: len(rows)]
            by_row = _errors(logits_BV[: len(few)], wanted.logits_BV)
            errors = {}
            if exact_BV is not None:
                errors["torch"] = max(by_row)
                errors["float32"] = max(_errors(logits_BV[: len(few)], exact_BV))
                errors["torch_float32"] = max(_errors(wanted.logits_BV, exact_BV))
            else:
                errors["torch"] = max((e for e in by_row if e < LIMIT), default=0.0)
                flips += sum(not error < LIMIT for error in by_row)
            worst = {name: max(error, worst.get(name, 0.0)) for name, error in errors.items()}
            _require_equal_reads(arm, got.attended[: len(few)].tolist(), wanted.attended)
            got.accept(logits_BV.argmax(dim=-1).tolist())
        self._require(arm, worst, flips=flips, row_steps=steps * len(rows[: self._checked]))
        return worst | {"near_ties": flips} if flips else worst

    def _require(self, arm: str, errors: dict[str, float], *, flips: int, row_steps: int) -> None:
        if "float32" in errors:
            limit = FARTHER * errors["torch_float32"]
            right = errors["float32"] < limit
        else:
            limit = LIMIT
            right = flips <= (max(1, MOST_FLIPS * row_steps) if arm in CHOOSING else 0)
        if not right:
            raise InternalError(
                f"{arm}: logits are off by {errors}, {limit:.3g} is allowed, in {flips} of "
                f"{row_steps} row steps by more: the kernels are wrong on this device, so their "
                "speed means nothing; report this with the Triton version"
            )


def _errors(got: Tensor, wanted: Tensor) -> list[float]:
    """Length of the difference over length of the wanted vector, by row."""
    got, wanted = got.double(), wanted.double()
    found: list[float] = ((got - wanted).norm(dim=1) / wanted.norm(dim=1)).tolist()
    return found


def _require_equal_reads(arm: str, got: list[int], wanted: list[int]) -> None:
    if got != wanted:
        raise InternalError(
            f"{arm}: {got} slots were read, {wanted} by the PyTorch path: the plan is wrong; "
            "report this"
        )
