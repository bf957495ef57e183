"""Needle questions under many arms: is every token of the answer the likeliest one?

The tokens of the true answer are fed, which says the same as greedy decode would: up to the first
wrong token both are the same text. The first one is the prefill's own.

Shapes: B arms (dense first), V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from loadtest.quality.tasks.sample import Sample
from loadtest.sparsity.arms import FULL_ARM, Arm, dense_arm
from loadtest.sparsity.comparison import divergence
from loadtest.sparsity.prefills import Prefill
from loadtest.sparsity.records import ArmFact, NeedleFact
from loadtest.sparsity.rows import arm_facts, row_batch
from shared.model.transformer import Transformer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NeedleQuestion:
    """One question and where its results belong."""

    model: Transformer
    """The decoder."""
    sample: Sample
    """The question; its depth is known."""
    part: str
    """Part of the study."""
    run: int
    """The run that measures it."""

    def full(self, whole: Prefill) -> list[ArmFact | NeedleFact]:
        """Dense decode over the whole prompt, and what this arm is."""
        return self._facts(whole, [FULL_ARM])

    def measure(self, prefill: Prefill, arms: Sequence[Arm]) -> list[ArmFact | NeedleFact]:
        """Every arm over a prefill and dense over the same, and what each arm is."""
        return self._facts(prefill, [dense_arm(prefill.name), *arms])

    def _facts(self, prefill: Prefill, arms: Sequence[Arm]) -> list[ArmFact | NeedleFact]:
        answer = self.sample.answer_ids
        right = [int(prefill.logits_V.argmax()) == answer[0]] * len(arms)
        batch = row_batch(
            self.model,
            prefill.tensors,
            params=[arm.params for arm in arms],
            first_token=answer[0],
            room=len(answer),
        )
        kl_B = torch.zeros(len(arms), device=self.model.device)
        for target in answer[1:]:
            computed = batch.forward()
            log_BV = computed.logits_BV.log_softmax(dim=-1)
            kl_B += divergence(log_BV[0], log_BV)
            found = (computed.logits_BV.argmax(dim=-1) == target).tolist()
            right = [was and now for was, now in zip(right, found, strict=True)]
            computed.accept([target] * len(arms))
        kl = (kl_B / max(len(answer) - 1, 1)).tolist()
        depth = self.sample.depth
        assert depth is not None, "a needle stands somewhere"
        found = [
            NeedleFact(
                run=self.run,
                part=self.part,
                task=self.sample.task,
                length=self.sample.length,
                depth=depth,
                seed=self.sample.seed,
                arm=arm.name,
                budget=arm.budget,
                prefill=prefill.name,
                group=arm.group,
                prompt_tokens=prefill.tensors.prompt_tokens,
                kept=prefill.kept,
                right=right[index],
                kl=kl[index],
                attended=batch.rows[index].attended,
                dense_attended=batch.rows[0].attended,
            )
            for index, arm in enumerate(arms)
        ]
        return [*arm_facts(arms, batch.rows, run=self.run, pruning=prefill.params), *found]
