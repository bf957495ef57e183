"""Measures prompts under arms: one full read, one oracle, one family of pruned reads, then answers.

What arms share is done once: full's KV serves the oracle and every comparison, arms of one pruning
layer share the layers before it, and the answers of all arms are decoded together.

Shapes: L prompt tokens.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from loadtest.quality.answer import answers_are_greedy, first_token_kl, generate_many
from loadtest.quality.arms import Arm, full_arm
from loadtest.quality.correlation import agreement
from loadtest.quality.oracle import OracleSwitches, ask_prompt, oracle_scores
from loadtest.quality.tasks.sample import Protocol, Sample
from loadtest.quality.tasks.scoring import score_output
from prefill_service.engine.evaluate import EvaluatedPrompt, evaluate_family, rank_and_prefill
from prefill_service.ranking.base import SideInputs
from shared.model.attention import PrefillAttention
from shared.model.transformer import Transformer
from shared.tokenizer.tokenizer import Tokenizer
from shared.types.methods import PruningParams

RIGHT = 1.0
"""Score of a wholly right answer."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setup:
    """One model, ready to be measured."""

    model: Transformer
    """The decoder."""
    attention: PrefillAttention
    """Its prefill attention."""
    tokenizer: Tokenizer
    """Its tokenizer."""
    base: PruningParams
    """The profile's parameters."""
    draft: Transformer
    """The draft model of speculative prefill; may be `model` itself."""
    switches: OracleSwitches
    """How the oracle scores."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FullRead:
    """A prompt read in full, and its outcome."""

    sample: Sample
    """What was asked."""
    prompt: EvaluatedPrompt
    """Its whole KV."""
    score: float
    """Score of full's answer, 0 to 1."""
    answer_ids: tuple[int, ...]
    """Full's own greedy answer; the oracle listens to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one prompt under one arm."""

    arm: Arm
    """How it was read."""
    kept_tokens: int
    """Tokens that passed the pruning layer."""
    score: float
    """0 to 1."""
    first_token_kl: float | None
    """From full's distribution; None if the question came after the prompt."""
    spearman: float | None
    """Agreement with the oracle; None without scores."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Read:
    """A prompt read under one arm, not answered yet."""

    full: FullRead
    arm: Arm
    prompt: EvaluatedPrompt
    question: Sequence[int]
    oracle_L: Tensor

    def outcome(self, score: float) -> Outcome:
        """The outcome once the answer has its score."""
        kl = None
        if not self.question:
            kl = first_token_kl(self.full.prompt.logits_V, self.prompt.logits_V)
        score_L = self.prompt.score_L
        return Outcome(
            arm=self.arm,
            kept_tokens=int(self.prompt.kept_N.shape[0]),
            score=score,
            first_token_kl=kl,
            spearman=None if score_L is None else agreement(score_L, self.oracle_L),
        )


class Evaluator:
    """Measures prompts of one model.

    Args:
        setup: the model and what goes with it.
        word_for_word: an answer is right when it is the sample's own, token by token, and wrong
            otherwise; False scores the generated answer by the sample's metric.
    """

    def __init__(self, setup: Setup, *, word_for_word: bool) -> None:
        self._setup = setup
        self._word_for_word = word_for_word

    def read_full(self, samples: Sequence[Sample]) -> list[FullRead]:
        """Reads prompts in full and answers them."""
        prompts = [
            rank_and_prefill(
                self._setup.model,
                attention=self._setup.attention,
                token_ids=sample.prompt_ids,
                params=full_arm(self._setup.base).params,
            )
            for sample in samples
        ]
        answers = self._generated(prompts, samples, questions=None)
        scores = self._scores(prompts, samples, questions=None, answers=answers)
        return [
            FullRead(sample=sample, prompt=prompt, score=score, answer_ids=tuple(answer))
            for sample, prompt, score, answer in zip(samples, prompts, scores, answers, strict=True)
        ]

    def measure(
        self, fulls: Sequence[FullRead], arms: Sequence[Sequence[Arm]], *, protocol: Protocol
    ) -> list[list[Outcome]]:
        """Reads each prompt under its own arms; the answers of all are decoded together."""
        reads: list[_Read] = []
        for full, own in zip(fulls, arms, strict=True):
            reads += self._read(full, own, protocol=protocol)
        questions = [read.question for read in reads]
        scores = self._scores(
            [read.prompt for read in reads],
            [read.full.sample for read in reads],
            questions=questions if any(questions) else None,
        )
        outcomes = iter([read.outcome(score) for read, score in zip(reads, scores, strict=True)])
        return [[next(outcomes) for _ in own] for own in arms]

    def _read(self, full: FullRead, arms: Sequence[Arm], *, protocol: Protocol) -> "list[_Read]":
        context, question = full.sample.split(protocol)
        oracle_L = self.oracle(full)[: len(context)]
        draw = _draw_of(full.sample)
        prompts = evaluate_family(
            self._setup.model,
            attention=self._setup.attention,
            token_ids=context,
            variants=[replace(arm.params, seed=draw) for arm in arms],
            side=SideInputs(oracle_L=oracle_L, draft=self._setup.draft),
        )
        return [
            _Read(full=full, arm=arm, prompt=prompt, question=question, oracle_L=oracle_L)
            for arm, prompt in zip(arms, prompts, strict=True)
        ]

    def oracle(self, full: FullRead, switches: OracleSwitches | None = None) -> Tensor:
        """The oracle's score of every prompt token, float32 [L]."""
        asked = ask_prompt(
            self._setup.model,
            full.prompt,
            token_ids=full.sample.prompt_ids,
            answer_ids=full.answer_ids,
            window=1,
        )
        return oracle_scores(asked, self._setup.switches if switches is None else switches)

    def _scores(
        self,
        prompts: Sequence[EvaluatedPrompt],
        samples: Sequence[Sample],
        *,
        questions: Sequence[Sequence[int]] | None,
        answers: Sequence[Sequence[int]] | None = None,
    ) -> list[float]:
        """Scores of the answers to `prompts`; generates them unless given."""
        if not prompts:
            return []
        if self._word_for_word:
            wanted = [sample.answer_ids for sample in samples]
            return [
                float(right)
                for right in answers_are_greedy(
                    self._setup.model, prompts, wanted, questions=questions
                )
            ]
        if answers is None:
            answers = self._generated(prompts, samples, questions=questions)
        decode = self._setup.tokenizer.decode
        return [
            score_output(sample, decode(answer))
            for sample, answer in zip(samples, answers, strict=True)
        ]

    def _generated(
        self,
        prompts: Sequence[EvaluatedPrompt],
        samples: Sequence[Sample],
        *,
        questions: Sequence[Sequence[int]] | None,
    ) -> list[list[int]]:
        if not prompts:
            return []
        answers = generate_many(
            self._setup.model,
            prompts,
            max_tokens=max(sample.max_new_tokens for sample in samples),
            stop_ids=self._setup.tokenizer.eos_ids,
            questions=questions,
        )
        # Decoded together, but each sample grants its answer a length of its own.
        return [
            answer[: sample.max_new_tokens] for answer, sample in zip(answers, samples, strict=True)
        ]


def _draw_of(sample: Sample) -> int:
    """Seed of the random control: another draw for every prompt, the same in every run."""
    text = f"{sample.task}/{sample.length}/{sample.depth}/{sample.seed}"
    return zlib.crc32(text.encode())
