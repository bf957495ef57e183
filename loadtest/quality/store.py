"""Results of an evaluation of rankings: the facts that it knows, and its results file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from loadtest.facts import FILE_NAME, FactStore, Key, Run, facts_of, merge_facts

__all__ = [
    "FILE_NAME",
    "CorrelationCurve",
    "Fact",
    "Key",
    "ResultStore",
    "Run",
    "Timing",
    "Trial",
    "merge_folders",
    "read_facts",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One prompt answered under one arm."""

    kind: ClassVar[str] = "trial"
    run: int
    """The run that measured it."""
    part: str
    """Part of the study: needle, ruler, mixture, ablation, longbench."""
    task: str
    """Name of the task within the part."""
    protocol: str
    """Whether the ranker saw the question: included or excluded."""
    length: int
    """Wanted prompt length, in tokens."""
    depth: float | None
    """Place of the needle, 0 to 1; None if the task has no single place."""
    seed: int
    """Seed of the sample."""
    arm: str
    """Name of the arm, as tables show it."""
    rate: float
    """Keep rate asked for."""
    prompt_tokens: int
    """L."""
    kept_tokens: int
    """Tokens that passed the pruning layer."""
    score: float
    """Score of the answer, 0 to 1."""
    first_token_kl: float | None
    """KL divergence of the first token's distribution from full's, in nats; None if the question
    came after the prompt."""
    spearman: float | None
    """Rank correlation of the arm's scores with the oracle's; None without scores."""

    @property
    def key(self) -> Key:
        """Everything that decides the outcome."""
        return (*self.sample_key, self.arm, self.rate)

    @property
    def sample_key(self) -> Key:
        """The prompt, whatever the arm."""
        return (
            self.kind, self.part, self.task, self.protocol, self.length, self.depth, self.seed
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelationCurve:
    """Agreement of each layer's own ranking with the oracle on one prompt."""

    kind: ClassVar[str] = "correlation"
    run: int
    """The run that measured it."""
    task: str
    """Name of the task."""
    length: int
    """Wanted prompt length, in tokens."""
    seed: int
    """Seed of the sample."""
    oracle: str
    """The oracle's switches, in a word or two."""
    series: str
    """`layer` for single layers, or the aggregation and its number of layers."""
    rho: list[float]
    """Spearman's rho, one a layer; of an aggregate, one a pruning layer."""
    coverage: list[float] | None
    """Share of the needles' tokens that are kept, likewise; None without needles."""

    @property
    def key(self) -> Key:
        """Everything that decides the outcome."""
        return (self.kind, self.task, self.length, self.seed, self.oracle, self.series)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Time to the first logits of one arm, and its ratio to full in the same repeats."""

    kind: ClassVar[str] = "timing"
    run: int
    """The run that measured it."""
    length: int
    """Prompt length, in tokens."""
    arm: str
    """Name of the arm."""
    rate: float
    """Keep rate asked for."""
    seconds: list[float]
    """One value a repeat."""
    ratio_to_full: list[float]
    """One value a repeat: seconds over full's of that repeat."""

    @property
    def key(self) -> Key:
        """Everything that decides the outcome."""
        return (self.kind, self.length, self.arm, self.rate)


Fact = Run | Trial | CorrelationCurve | Timing
_KINDS = (Trial, CorrelationCurve, Timing)


class ResultStore(FactStore):
    """The results file of one folder; see `FactStore`."""

    def __init__(self, folder: Path, *, resume: bool) -> None:
        super().__init__(folder, kinds=_KINDS, resume=resume)

    def trial(self, key: Key) -> Trial | None:
        """The trial of that key, if it was measured."""
        fact = self.get(key)
        return fact if isinstance(fact, Trial) else None


def merge_folders(folders: Sequence[Path], *, out: Path) -> int:
    """Writes what several folders hold into a new one; of equal keys the first counts.

    Args:
        folders: results of one model, type and profile, for example of shards.
        out: a folder without results.

    Returns:
        How many facts it wrote beside the runs.

    Raises:
        ConfigError: a folder has no results, `out` has some, or they are of different models, types
            or profiles.
    """
    return merge_facts(folders, store=ResultStore(out, resume=False), kinds=_KINDS)


def read_facts(folder: Path) -> list[Fact]:
    """Every fact of a folder in the order of writing; of equal keys the first.

    Raises:
        ConfigError: a line cannot be read.
    """
    return [fact for fact in facts_of(folder, kinds=_KINDS) if isinstance(fact, Fact)]
