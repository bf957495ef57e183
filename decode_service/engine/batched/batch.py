"""The rows of a batch that have their layers in common: one step of theirs from end to end.

Shapes: S rows of the step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from decode_service.engine.batched.best_tokens import TokenFetcher
from decode_service.engine.batched.device_step import StepOutput
from decode_service.engine.batched.row_plan import RowPlan
from decode_service.engine.batched.step_inputs import Numbers, StepInputs
from decode_service.engine.batched.step_shape import StepShape, shape_for
from decode_service.engine.kv_cache import LengthGroup
from decode_service.engine.row_step import move_on
from decode_service.engine.sequence import Sequence
from decode_service.sparsity.base import LayerRole
from shared.kv.geometry import PAGE_SIZE
from shared.model.staging import Fetched


class RunnableStep(Protocol):
    """A step of one shape, captured or not."""

    def run(self) -> StepOutput:
        """Enqueues it."""


StepMaker = Callable[[StepInputs, StepShape], RunnableStep]
"""Makes the step of a shape, once its inputs have been sent."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchComputed:
    """A step whose rows have not moved yet: dropped, it leaves no trace."""

    rows: list[Sequence]
    """In the order of the output."""
    output: StepOutput
    """On the device, until a later step of the same shape is enqueued."""
    best: Fetched
    """Best tokens on their way to the host."""
    attended: Numbers
    """KV slots that each row read, summed over layers, [S]."""
    refreshes: Numbers
    """Choices that each row made anew, [S]."""

    def accept(self, token_ids: list[int]) -> None:
        """Every row takes its token and moves on; once."""
        facts = zip(
            self.rows, token_ids, self.attended.tolist(), self.refreshes.tolist(), strict=True
        )
        for row, token_id, attended, refreshes in facts:
            move_on(row, token_id, attended=attended, refreshes=refreshes)


class Batch:
    """Rows of the same roles and slot classes.

    Args:
        inputs: their seats.
        max_rows: rows of one step at most.
        max_tokens: longest context of a row.
        make_step: makes steps.
    """

    def __init__(
        self, inputs: StepInputs, *, max_rows: int, max_tokens: int, make_step: StepMaker
    ) -> None:
        self._inputs = inputs
        self._max_rows = max_rows
        self._max_tokens = max_tokens
        self._make_step = make_step
        self._steps: dict[StepShape, RunnableStep] = {}
        self._best = TokenFetcher(max_rows=max_rows)
        layers = inputs.layers
        self._sparse = {group: layers.sparse(group) for group in LengthGroup}
        self._full = {
            group: sum(layers.group_of(i) is group for i in range(len(layers.roles))) - len(sparse)
            for group, sparse in self._sparse.items()
        }
        planning = np.array([role is LayerRole.DELTA for role in layers.roles])
        self._planned_before: Numbers = np.concatenate(([0], np.cumsum(planning)))

    def compute(self, rows: list[Sequence], plans: list[RowPlan]) -> BatchComputed:
        """Enqueues a step of `rows`; their own state is left alone."""
        self._inputs.seat(rows, plans)
        return self._enqueue(rows, self._inputs.lengths(), before=None)

    def compute_ahead(self, before: BatchComputed, plans: list[RowPlan]) -> BatchComputed | None:
        """Enqueues the step after one that is under way, fed by that one's best tokens.

        Args:
            before: that one; it is still on the device.
            plans: of its rows.

        Returns:
            The step, which holds if every row takes its best token; None where a row has no room.
        """
        self._inputs.seat(before.rows, plans)
        lengths = self._inputs.lengths(ahead=1)
        if self._inputs.longest(ahead=1) > self._max_tokens or not self._inputs.have_room(lengths):
            return None
        return self._enqueue(before.rows, lengths, before=before)

    def _enqueue(
        self,
        rows: list[Sequence],
        lengths: dict[LengthGroup, Numbers],
        *,
        before: BatchComputed | None,
    ) -> BatchComputed:
        inputs, ahead = self._inputs, 0 if before is None else 1
        pages = {group: -(-length // PAGE_SIZE) for group, length in lengths.items()}
        choice = self._choice(pages)
        shape = self._shape(rows=len(rows), tokens=inputs.longest(ahead=ahead), choice=choice)
        budgets = np.minimum(inputs.budgets, shape.choice)
        fed_S = None if before is None else before.output.best_2B[1, : len(rows)]
        inputs.advance(lengths, budgets, fed_S=fed_S, ahead=ahead)
        step = self._steps.get(shape)
        if step is None:
            step = self._steps[shape] = self._make_step(inputs, shape)
        # The device is at work from here on; what follows is for later.
        output = step.run()
        return BatchComputed(
            rows=rows,
            output=output,
            best=self._best.fetch(output.best_2B),
            attended=self._attended(lengths, pages, budgets if choice else None),
            refreshes=self._refreshes(pages),
        )

    def prepare(self, *, choice: int) -> None:
        """Makes the steps of every number of rows and every context.

        Args:
            choice: pages of the largest choice; 0: of dense steps.
        """
        self._inputs.empty()
        rows = {min(1 << power, self._max_rows) for power in range(self._max_rows.bit_length() + 1)}
        for count in sorted(rows, reverse=True):
            for tokens in self._contexts():
                shape = self._shape(rows=count, tokens=tokens, choice=choice)
                if shape not in self._steps:
                    self._steps[shape] = self._make_step(self._inputs, shape)

    def _contexts(self) -> list[int]:
        """Positions of the longest row, from all that there may be downwards by halves."""
        halves = (self._max_tokens >> power for power in range(self._max_tokens.bit_length()))
        return [tokens for tokens in halves if tokens]

    def _shape(self, *, rows: int, tokens: int, choice: int) -> StepShape:
        return shape_for(
            rows=rows,
            tokens=tokens,
            choice=choice,
            max_rows=self._max_rows,
            max_tokens=self._max_tokens,
        )

    def _choice(self, pages: dict[LengthGroup, Numbers]) -> int:
        """Pages of the largest choice; 0 when no row has one to make."""
        budgets, used = self._inputs.budgets, [g for g, sparse in self._sparse.items() if sparse]
        over = any(bool((pages[group] > budgets).any()) for group in used)
        if not over and not (used and self._inputs.forced.any()):
            return 0
        return max(int(np.minimum(pages[group], budgets).max()) for group in used)

    def _attended(
        self,
        lengths: dict[LengthGroup, Numbers],
        pages: dict[LengthGroup, Numbers],
        budgets: Numbers | None,
    ) -> Numbers:
        total = np.zeros(len(self._inputs.budgets), dtype=np.int64)
        for group, length in lengths.items():
            total += (self._full[group] + len(self._sparse[group])) * length
            if budgets is not None:
                hidden = PAGE_SIZE * np.maximum(pages[group] - budgets, 0)
                total -= len(self._sparse[group]) * hidden
        return total

    def _refreshes(self, pages: dict[LengthGroup, Numbers]) -> Numbers:
        """Δ-layers before the last layer that reads a choice, row by row."""
        last = np.zeros(len(self._inputs.budgets), dtype=np.int64)
        for group, sparse in self._sparse.items():
            if sparse:
                selects = (pages[group] > self._inputs.budgets) | self._inputs.forced
                last = np.where(selects, np.maximum(last, sparse[-1]), last)
        return self._planned_before[last]
