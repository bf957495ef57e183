"""Continues known text under many arms at once and compares each next token with dense decode.

Shapes: B arms (dense first), V vocabulary.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from decode_service.engine.sequence import Sequence as Row
from decode_service.sparsity.base import LayerRole
from loadtest.sparsity.arms import Arm, dense_arm
from loadtest.sparsity.comparison import Comparison
from loadtest.sparsity.prefills import Prefill
from loadtest.sparsity.probe import SelectionProbe
from loadtest.sparsity.records import ArmFact, ForcedFact
from loadtest.sparsity.rows import RowBatch, arm_facts, row_batch, row_bytes
from loadtest.sparsity.texts import Text
from shared.model.transformer import Transformer

_BATCH_BYTES = {"cuda": 24 << 30, "cpu": 4 << 30}
"""KV that the rows of one batch may add, on each kind of device."""
_WHOLE_AT_FIRST = frozenset({"h2o"})
"""Policies whose first step reads everything, to learn what matters."""
_OWN_PACE = frozenset({"raas"})
"""Policies that read more than K pages of a long prompt, so that no formula holds."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForcedText:
    """A text under some prefill, ready to be continued."""

    model: Transformer
    """The decoder."""
    text: Text
    """What is continued."""
    prefill: Prefill
    """What arms continue."""
    whole: Prefill | None
    """The whole prompt where `prefill` is a pruned one; None: `prefill` is the whole prompt."""
    sample_every: int
    """Steps from one look at the selections to the next."""

    def measure(self, arms: Sequence[Arm], *, part: str, run: int) -> list[ArmFact | ForcedFact]:
        """Every arm and dense over the same KV, and what each arm is."""
        started = time.perf_counter()
        rows = [dense_arm(self.prefill.name), *arms]
        batch = self._batch(self.prefill, rows)
        comparison, probe = self._continue(batch, rows)
        seconds = (time.perf_counter() - started) / len(rows)
        blank = self._blank(batch, part=part, run=run, scored=comparison.scored, seconds=seconds)
        figures = comparison.figures()
        found = [
            replace(
                blank,
                arm=arm.name,
                budget=arm.budget,
                group=arm.group,
                kl=own.kl,
                kl_p95=own.kl_p95,
                agreement=own.agreement,
                kl_full=own.kl_full,
                agreement_full=own.agreement_full,
                accuracy=own.accuracy,
                logprob=own.logprob,
                kl_blocks=own.kl_blocks,
                agreement_blocks=own.agreement_blocks,
                dense_accuracy=figures[0].accuracy,
                dense_logprob=figures[0].logprob,
                attended=row.attended,
                expected_attended=expected_attended(arm, row),
                layer_recall=seen.layer_recall,
                recall_p10=seen.recall_p10,
                recency_share=seen.recency_share,
                churn=seen.churn,
            )
            for arm, own, row, seen in zip(rows, figures, batch.rows, probe.readings(), strict=True)
        ]
        return [*arm_facts(rows, batch.rows, run=run, pruning=self.prefill.params), *found]

    def _blank(
        self, batch: RowBatch, *, part: str, run: int, scored: int, seconds: float
    ) -> ForcedFact:
        """What the facts of a batch share."""
        return ForcedFact(
            run=run,
            part=part,
            text=self.text.name,
            context=len(self.text.prompt_ids),
            seed=self.text.seed,
            arm="",
            budget=0,
            prefill=self.prefill.name,
            group="",
            kept=self.prefill.kept,
            steps=self.text.steps,
            scored=scored,
            kl=0.0,
            kl_p95=0.0,
            agreement=1.0,
            kl_full=0.0,
            agreement_full=1.0,
            accuracy=0.0,
            dense_accuracy=0.0,
            logprob=0.0,
            dense_logprob=0.0,
            attended=0,
            dense_attended=batch.rows[0].attended,
            unpruned_attended=batch.rows[0].dense,
            expected_attended=0,
            layer_recall=[],
            recall_p10=None,
            recency_share=None,
            churn=None,
            seconds=seconds,
        )

    def _continue(self, batch: RowBatch, arms: Sequence[Arm]) -> tuple[Comparison, SelectionProbe]:
        whole = None if self.whole is None else self._batch(self.whole, [dense_arm()])
        probe = SelectionProbe(
            batch.rows,
            recency_pages=[arm.params.recency_pages if arm.params else 0 for arm in arms],
            every=self.sample_every,
        )
        comparison = Comparison()
        forced = self.text.forced_ids[1:]
        for step, (target, counts) in enumerate(zip(forced, self.text.scored, strict=True)):
            computed = batch.forward(observer=probe if probe.wants(step) else None)
            full_V = None
            if whole is not None:
                complete = whole.forward()
                complete.accept([target])
                full_V = complete.logits_BV[0]
            if counts:
                comparison.add(computed.logits_BV, full_V=full_V, target=target)
            computed.accept([target] * len(arms))
        return comparison, probe

    def _batch(self, prefill: Prefill, arms: Sequence[Arm]) -> RowBatch:
        return row_batch(
            self.model,
            prefill.tensors,
            params=[arm.params for arm in arms],
            first_token=self.text.forced_ids[0],
            room=self.text.steps,
        )


def arm_batches(model: Transformer, arms: Sequence[Arm], *, room: int) -> Iterator[list[Arm]]:
    """Arms that may be run together, dense beside them."""
    budget = _BATCH_BYTES[model.device.type]
    size = max(1, budget // row_bytes(model, room=room) - 1)
    for first in range(0, len(arms), size):
        yield list(arms[first : first + size])


def expected_attended(arm: Arm, row: Row) -> int:
    """Token-layers that a finished row should have read; 0 without a formula.

    Every slot in layers that are not sparse, the budget or every slot in the others.
    """
    params = arm.params
    if params is None or params.policy in _OWN_PACE or params.mass is not None:
        return 0
    whole_steps = 1 if params.policy in _WHOLE_AT_FIRST else 0
    layouts = row.prompt.layouts
    alike = Counter(
        (role is LayerRole.SPARSE, layouts[layout].slots)
        for role, layout in zip(row.row_policy.roles, row.prompt.layer_layouts, strict=True)
    )
    return sum(
        layers * (min(arm.budget, slots + step) if sparse and step > whole_steps else slots + step)
        for (sparse, slots), layers in alike.items()
        for step in range(1, row.steps + 1)
    )
