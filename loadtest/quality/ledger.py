"""What one part of a study has measured already, and the records that it adds."""

from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.quality.arms import Arm
from loadtest.quality.runner import FullRead, Outcome
from loadtest.quality.store import Key, ResultStore, Trial
from loadtest.quality.tasks.sample import Protocol, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The trials of one part under one protocol."""

    store: ResultStore
    """Where they are."""
    part: str
    """The part's name."""
    protocol: Protocol
    """What rankers see."""
    run: int
    """The run that new trials belong to."""

    def missing(self, sample: Sample, arms: Sequence[Arm]) -> list[Arm]:
        """Arms under which a sample was not measured yet."""
        return [arm for arm in arms if self._key(sample, arm) not in self.store]

    def score(self, sample: Sample, arm: Arm) -> float | None:
        """The score of a sample under an arm, if it was measured."""
        trial = self.store.trial(self._key(sample, arm))
        return None if trial is None else trial.score

    def trial(self, sample: Sample, outcome: Outcome) -> Trial:
        """The record of an outcome."""
        return Trial(
            run=self.run,
            part=self.part,
            task=sample.task,
            protocol=self.protocol.value,
            length=sample.length,
            depth=sample.depth,
            seed=sample.seed,
            arm=outcome.arm.name,
            rate=outcome.arm.rate,
            prompt_tokens=len(sample.prompt_ids),
            kept_tokens=outcome.kept_tokens,
            score=outcome.score,
            first_token_kl=outcome.first_token_kl,
            spearman=outcome.spearman,
        )

    def full_trial(self, full: FullRead, arm: Arm) -> Trial:
        """The record of a prompt that was read in full, under the arm of that name."""
        outcome = Outcome(
            arm=arm,
            kept_tokens=len(full.sample.prompt_ids),
            score=full.score,
            first_token_kl=0.0,
            spearman=None,
        )
        return self.trial(full.sample, outcome)

    def _key(self, sample: Sample, arm: Arm) -> Key:
        return (
            Trial.kind,
            self.part,
            sample.task,
            self.protocol.value,
            sample.length,
            sample.depth,
            sample.seed,
            arm.name,
            arm.rate,
        )
