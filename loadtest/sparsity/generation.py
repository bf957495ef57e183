"""Free generations: each arm writes its own text, and dense decode scores it token by token.

One batch holds dense, the arms, and for every arm a dense row that is fed the arm's tokens, so that
a text is scored by the very path that would have written it.

Shapes: A arms (dense first), B rows, V vocabulary.
"""

import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from decode_service.engine.runner import LayerRead
from loadtest.sparsity.arms import Arm, dense_arm
from loadtest.sparsity.comparison import divergence
from loadtest.sparsity.prefills import Prefill
from loadtest.sparsity.records import ArmFact, GenerationFact, PageStripFact
from loadtest.sparsity.rows import RowBatch, arm_facts, row_batch
from loadtest.sparsity.strip import StripRecorder
from loadtest.sparsity.texts import Text
from shared.model.transformer import Transformer

CURVE_TOKENS = 256
"""Tokens of one value of a log-probability curve."""
_RUN_TOKENS = 8
"""Tokens of a run whose repetition is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FreeText:
    """A prompt and how it is to be continued."""

    model: Transformer
    """The decoder."""
    text: Text
    """Gives the prompt."""
    whole: Prefill
    """Its KV."""
    tokens: int
    """Tokens to generate, the first one counted; an end-of-text token does not stop them."""
    temperature: float
    """0: greedy; above it every arm draws with the same random numbers."""
    stop_ids: Collection[int]
    """End-of-text tokens."""
    strip_layers: tuple[int, ...]
    """Layers whose pages are kept; empty: the telling ones."""
    strip_steps: int
    """Steps kept of each at most."""
    run: int
    """The run that measures it."""

    def measure(self, arms: Sequence[Arm]) -> list[ArmFact | GenerationFact | PageStripFact]:
        """Generations of dense and every arm, the arms' strips, and what each arm is."""
        writers = [dense_arm(), *arms]
        recorders = _Recorders()
        kept = self._generate(writers, recorders)
        own = kept.tokens[0]
        facts: list[ArmFact | GenerationFact | PageStripFact] = [
            *arm_facts(writers, kept.batch.rows[: len(writers)], run=self.run, pruning=None),
            *(
                self._generation(kept, row, arm, dense_tokens=own)
                for row, arm in enumerate(writers)
            ),
        ]
        for arm, recorder in zip(arms, recorders.each, strict=True):
            facts += self._strips(arm, recorder)
        return facts

    def _generate(self, writers: Sequence[Arm], recorders: "_Recorders") -> "_Kept":
        first = int(self._choose(self.whole.logits_V[None], step=0)[0])
        arms = len(writers)
        batch = row_batch(
            self.model,
            self.whole.tensors,
            params=[*(arm.params for arm in writers), *[None] * (arms - 1)],
            first_token=first,
            room=self.tokens,
        )
        recorders.each = [
            StripRecorder(row, layers=self.strip_layers) for row in batch.rows[1:arms]
        ]
        stride = -(-self.tokens // self.strip_steps)
        kept = _Kept(tokens=[[first] for _ in writers], batch=batch)
        for step in range(self.tokens - 1):
            watched = recorders.at(step) if step % stride == 0 else None
            computed = batch.forward(observer=watched)
            logits_AV = computed.logits_BV[:arms]
            # Dense scores itself; the scoring rows follow the arms.
            dense_AV = torch.cat((logits_AV[:1], computed.logits_BV[arms:]))
            chosen_A = self._choose(logits_AV, step=step + 1)
            tokens = kept.add(logits_AV, dense_AV=dense_AV, chosen_A=chosen_A)
            computed.accept([*tokens, *tokens[1:]])
        return kept

    def _choose(self, logits_AV: Tensor, *, step: int) -> Tensor:
        if self.temperature == 0.0:
            return logits_AV.argmax(dim=-1)
        generator = torch.Generator().manual_seed(self.text.seed * self.tokens + step)
        # Gumbel noise, the same for every arm: equal distributions then draw equal tokens.
        drawn_V = torch.rand(logits_AV.shape[-1], generator=generator, dtype=torch.float64)
        noise_V = -torch.log(-torch.log(drawn_V.clamp_min(1e-300)))
        return (logits_AV / self.temperature + noise_V.to(logits_AV)).argmax(dim=-1)

    def _generation(
        self, kept: "_Kept", row: int, arm: Arm, *, dense_tokens: Sequence[int]
    ) -> GenerationFact:
        tokens = kept.tokens[row]
        scorer = 0 if row == 0 else len(kept.tokens) + row - 1
        logprobs = torch.stack(kept.logprob, dim=1)[row].tolist()
        return GenerationFact(
            run=self.run,
            text=self.text.name,
            context=len(self.text.prompt_ids),
            seed=self.text.seed,
            temperature=self.temperature,
            arm=arm.name,
            budget=arm.budget,
            tokens=len(tokens),
            logprob=statistics.fmean(logprobs),
            logprob_curve=[
                statistics.fmean(logprobs[at : at + CURVE_TOKENS])
                for at in range(0, len(logprobs), CURVE_TOKENS)
            ],
            agreement=float(torch.stack(kept.same, dim=1)[row].float().mean()),
            kl=float(torch.stack(kept.kl, dim=1)[row].mean()),
            eos_at=next((i for i, token in enumerate(tokens) if token in self.stop_ids), None),
            diverges_at=next(
                (
                    i
                    for i, pair in enumerate(zip(tokens, dense_tokens, strict=True))
                    if _differ(pair)
                ),
                None,
            ),
            distinct=distinct_runs(tokens),
            attended=kept.batch.rows[row].attended,
            dense_attended=kept.batch.rows[scorer].attended,
            token_ids=tokens,
        )

    def _strips(self, arm: Arm, recorder: StripRecorder) -> list[PageStripFact]:
        return [
            PageStripFact(
                run=self.run,
                text=self.text.name,
                context=len(self.text.prompt_ids),
                seed=self.text.seed,
                temperature=self.temperature,
                arm=arm.name,
                budget=arm.budget,
                layer=strip.layer,
                planner=strip.planner,
                steps=strip.steps,
                num_pages=strip.num_pages,
                pages=strip.pages,
                refreshed=strip.refreshed,
            )
            for strip in recorder.strips.values()
        ]


def distinct_runs(tokens: Sequence[int]) -> float:
    """Share of runs of 8 tokens that are distinct; 1 for a text shorter than that."""
    runs = [
        tuple(tokens[at : at + _RUN_TOKENS]) for at in range(max(0, len(tokens) - _RUN_TOKENS + 1))
    ]
    return len(set(runs)) / len(runs) if runs else 1.0


def _differ(pair: tuple[int, int]) -> bool:
    return pair[0] != pair[1]


@dataclass(slots=True, kw_only=True, eq=False)
class _Kept:
    """What a batch of generations leaves; scalars stay on the device until the end."""

    tokens: list[list[int]]
    batch: RowBatch
    logprob: list[Tensor] = field(default_factory=list)
    same: list[Tensor] = field(default_factory=list)
    kl: list[Tensor] = field(default_factory=list)

    def add(self, logits_AV: Tensor, *, dense_AV: Tensor, chosen_A: Tensor) -> list[int]:
        """Takes one step; returns the chosen tokens, the only copy off the device."""
        dense_log_AV = dense_AV.log_softmax(dim=-1)
        self.logprob.append(dense_log_AV.gather(1, chosen_A[:, None]).squeeze(1))
        self.same.append(logits_AV.argmax(dim=-1) == dense_AV.argmax(dim=-1))
        self.kl.append(divergence(dense_log_AV, logits_AV.log_softmax(dim=-1)))
        chosen: list[int] = chosen_A.tolist()
        for own, token in zip(self.tokens, chosen, strict=True):
            own.append(token)
        return chosen


@dataclass(slots=True, eq=False)
class _Recorders:
    """The strip recorders of all arms, as one observer."""

    each: list[StripRecorder] = field(default_factory=list)

    def at(self, step: int) -> "_Recorders":
        """Turns to a step."""
        for recorder in self.each:
            recorder.at(step)
        return self

    def layer_read(self, seen: LayerRead) -> None:
        """Each takes what is its own."""
        for recorder in self.each:
            recorder.layer_read(seen)
