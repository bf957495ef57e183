"""Steps rows by Triton kernels, all of them together; the PyTorch path serves the others.

Which path serves a row follows from its policy and its layouts alone (`row_plan.py`), and from
whether somebody watches what it reads. Both paths read and write the same pages, and neither leaves
anything behind in a row that the other would miss, so that a row may change between two steps.

Where every row takes its best token, nothing else is asked and none ends with it, the next step is
enqueued before the tokens of this one are fetched, so that the device does not wait for the host.
The next call finds it under way; if by then the rows are others, it is dropped. That costs its
time, so that none is begun while rows are about to join. It leaves no trace: it wrote one slot of
each row, which the row's own next step writes again, in pages that the row held when it was
enqueued; whoever gets these pages next writes them later in the same stream, or in one that waits
for `SequencePages.free_since`.
"""

import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from decode_service.engine.batched.batch import Batch, BatchComputed, StepMaker
from decode_service.engine.batched.dense_attention import DenseMaker, by_triton
from decode_service.engine.batched.device_step import DeviceStep
from decode_service.engine.batched.graph import GraphedStep, make_pool
from decode_service.engine.batched.layer_tasks import BatchLayers, slot_classes
from decode_service.engine.batched.product_choice import ProductChoice
from decode_service.engine.batched.row_plan import RowPlan, plan_of
from decode_service.engine.batched.step_inputs import StepInputs
from decode_service.engine.batched.step_shape import StepShape
from decode_service.engine.kv_cache import PagedKvCache
from decode_service.engine.rows_to_come import no_rows_to_come
from decode_service.engine.runner import DecodeRunner, RowObserver, draws_of
from decode_service.engine.sequence import Sequence
from decode_service.sparsity.base import LayerRole
from shared.kv.geometry import PAGE_SIZE, pages_for
from shared.model.current_device import computing_on
from shared.model.sampler import plain_greedy, sample_rows
from shared.model.transformer import Transformer
from shared.types.sampling import SampledToken

Roles = tuple[LayerRole, ...]
_steps_of = operator.attrgetter("steps")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Group:
    """Rows that step together."""

    batch: Batch
    rows: list[Sequence]
    plans: list[RowPlan]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Division:
    """Who steps with whom; stays while the rows of a step stay the same."""

    rows: list[Sequence]
    together: list[_Group]
    alone: list[Sequence]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Ahead:
    """A step that is under way before it was asked for."""

    computed: BatchComputed
    steps: list[int]
    """Steps that its rows must have done."""
    fed: list[int]
    """Tokens that they must have taken last."""

    def fits(self, rows: list[Sequence]) -> bool:
        """Whether it is the step that these rows want."""
        return (
            rows == self.computed.rows
            and list(map(_steps_of, rows)) == self.steps
            and [row.generated[-1] for row in rows] == self.fed
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWays:
    """What computes the parts of a step that several can, and what decides on a step ahead."""

    dense: DenseMaker = by_triton
    """Makes the attention of layers that read everything and choose nothing."""
    products: ProductChoice | None = None
    """Chooses what multiplies by the weights; None: as `auto` does."""
    rows_to_come: Callable[[], bool] = no_rows_to_come
    """Whether rows are about to join, so that no step is to be begun ahead."""


class BatchRunner:
    """Feeds each row's last token and draws its next one.

    Args:
        model: the decoder.
        cache: where the rows' pages are.
        by_row: the PyTorch path, over the same model and cache.
        max_batch: rows of one step at most.
        max_tokens: longest context of a row.
        ways: what computes the parts that several can.
    """

    def __init__(
        self,
        model: Transformer,
        cache: PagedKvCache,
        *,
        by_row: DecodeRunner,
        max_batch: int,
        max_tokens: int,
        ways: StepWays | None = None,
    ) -> None:
        self._model = model
        self._cache = cache
        self._by_row = by_row
        self._max_batch = max_batch
        # Requests round their reservations up to pages.
        self._max_tokens = pages_for(max_tokens) * PAGE_SIZE
        ways = ways or StepWays()
        self._products = ways.products or ProductChoice(model, max_rows=max_batch)
        self._make_step = _step_maker(model, cache, ways.dense, self._products)
        self._batches: dict[BatchLayers, Batch] = {}
        self._plans: dict[Sequence, RowPlan | None] = {}
        self._division = _Division(rows=[], together=[], alone=[])
        self._ahead: _Ahead | None = None
        self._rows_to_come = ways.rows_to_come

    def step(
        self, rows: list[Sequence], *, observer: RowObserver | None = None
    ) -> list[SampledToken]:
        """One token a row; see `DecodeRunner.step`."""
        assert rows, "a step needs a row"
        with computing_on(self._model.device):
            return self._step(rows, observer)

    def _step(self, rows: list[Sequence], observer: RowObserver | None) -> list[SampledToken]:
        division = self._divide(rows, observer)
        ahead, self._ahead = self._ahead, None
        if len(division.together) == 1 and not division.alone:
            return self._step_together(division.together[0], ahead)
        return self._step_apart(division, rows, observer)

    def _step_together(self, group: _Group, ahead: _Ahead | None) -> list[SampledToken]:
        """A step of rows that all go together, which may be under way."""
        rows, batch = group.rows, group.batch
        if ahead is not None and ahead.fits(rows):
            computed = ahead.computed
        else:
            computed = batch.compute(rows, group.plans)
        draws = draws_of(rows, self._model.config.vocab_size)
        # Where a row ends with this token or another one joins, the next step is one of other rows.
        others = self._rows_to_come() or any(map(_ends, rows))
        stays = all(map(plain_greedy, draws)) and not others
        behind = batch.compute_ahead(computed, group.plans) if stays else None
        tokens = sample_rows(computed.output.logits_BV, draws, best_2B=computed.best.wait())
        token_ids = [token.token_id for token in tokens]
        computed.accept(token_ids)
        if behind is not None:
            self._ahead = _Ahead(computed=behind, steps=list(map(_steps_of, rows)), fed=token_ids)
        return tokens

    def _step_apart(
        self, division: _Division, rows: list[Sequence], observer: RowObserver | None
    ) -> list[SampledToken]:
        """A step of several groups, or of rows on both paths; all succeed or none moves on."""
        batches = [group.batch.compute(group.rows, group.plans) for group in division.together]
        alone = division.alone
        computed = self._by_row.forward(alone, observer=observer) if alone else None
        drawn = [self._sample(batch) for batch in batches]
        if computed is not None:
            drawn.append(self._by_row.sample(computed, alone))
        for batch, tokens in zip(batches, drawn, strict=False):
            batch.accept([token.token_id for token in tokens])
        if computed is not None:
            computed.accept([token.token_id for token in drawn[-1]])
        order = [row for group in division.together for row in group.rows] + alone
        by_row = dict(zip(order, (token for tokens in drawn for token in tokens), strict=True))
        return [by_row[row] for row in rows]

    @property
    def facts(self) -> dict[str, object]:
        """What computes the products of a step, by its rows, as far as steps were made."""
        return {"products": self._products.summary}

    def prepare(self, row: Sequence) -> None:
        """See `ServingRunner.prepare`; on a CUDA device, steps of more rows than one, too."""
        self.step([row])
        plan = self._plan(row)
        if plan is None or self._model.device.type != "cuda":
            return
        with computing_on(self._model.device):
            batch = self._batch(self._layers([row], [plan]))
            batch.prepare(choice=0)
            if plan.roles is not None:
                batch.prepare(choice=plan.budget)

    def compute(self, rows: list[Sequence]) -> BatchComputed:
        """Enqueues a step of rows that kernels serve and whose roles agree; none moves on."""
        with computing_on(self._model.device):
            (group,) = self._divide(rows, None).together
            return group.batch.compute(group.rows, group.plans)

    def _layers(self, rows: list[Sequence], plans: list[RowPlan]) -> BatchLayers:
        classes = slot_classes(
            frozenset(row.prompt.layer_layouts for row in rows),
            whole_layers=self._cache.whole_layers,
        )
        roles = next((plan.roles for plan in plans if plan.roles is not None), None)
        return BatchLayers(
            roles=roles or (LayerRole.FULL,) * len(classes),
            classes=classes,
            whole_layers=self._cache.whole_layers,
        )

    def _batch(self, layers: BatchLayers) -> Batch:
        if layers not in self._batches:
            inputs = StepInputs(
                layers,
                seats=self._max_batch,
                max_tokens=self._max_tokens,
                device=self._model.device,
            )
            self._batches[layers] = Batch(
                inputs,
                max_rows=self._max_batch,
                max_tokens=self._max_tokens,
                make_step=self._make_step,
            )
        return self._batches[layers]

    def _divide(self, rows: list[Sequence], observer: RowObserver | None) -> _Division:
        """Rows that go together, by their roles, and rows that go one by one."""
        if observer is None and rows == self._division.rows:
            return self._division
        self._plans = {row: self._plans[row] for row in rows if row in self._plans}
        alone = [row for row in rows if self._goes_alone(row, observer)]
        served = [row for row in rows if row not in alone] if alone else rows
        roles = Counter(plan.roles for row in served if (plan := self._plan(row)) is not None)
        # Dense rows go along with the largest group: one pass over the weights less.
        largest = max((each for each in roles if each), key=lambda each: roles[each], default=None)
        by_roles: dict[Roles | None, list[Sequence]] = {}
        for row in served:
            plan = self._plan(row)
            assert plan is not None, "kernels serve it"
            by_roles.setdefault(plan.roles or largest, []).append(row)
        together = [self._group(group) for group in by_roles.values()]
        division = _Division(rows=list(rows), together=together, alone=alone)
        if observer is None:
            self._division = division
        return division

    def _goes_alone(self, row: Sequence, observer: RowObserver | None) -> bool:
        return self._plan(row) is None or (observer is not None and observer.watches(row))

    def _group(self, rows: list[Sequence]) -> _Group:
        plans = [plan for row in rows if (plan := self._plan(row)) is not None]
        return _Group(batch=self._batch(self._layers(rows, plans)), rows=rows, plans=plans)

    def _plan(self, row: Sequence) -> RowPlan | None:
        if row not in self._plans:
            self._plans[row] = plan_of(row)
        return self._plans[row]

    def _sample(self, batch: BatchComputed) -> list[SampledToken]:
        draws = draws_of(batch.rows, self._model.config.vocab_size)
        return sample_rows(batch.output.logits_BV, draws, best_2B=batch.best.wait())


def _ends(row: Sequence) -> bool:
    """Whether the token of the step under way is the last one that was asked for."""
    return len(row.generated) + 1 == row.stop.max_tokens


def _step_maker(
    model: Transformer, cache: PagedKvCache, dense: DenseMaker, products: ProductChoice
) -> StepMaker:
    """Graphs on a CUDA device; elsewhere Triton's interpreter runs the steps as they are."""

    def plain(inputs: StepInputs, shape: StepShape) -> DeviceStep:
        return DeviceStep(model, cache, inputs, shape, dense=dense, products=products(shape.rows))

    if model.device.type != "cuda":
        return plain
    pool = make_pool()
    return lambda inputs, shape: GraphedStep(plain(inputs, shape), pool)
