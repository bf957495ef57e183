"""Results of an evaluation on disk: one JSON line a fact, written as soon as it is known.

A run that was killed goes on where it stopped: what is in the file is not measured again. Every
line but a run's own names its run, so that each figure can say command, hardware and commit.
"""

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from shared.errors import ConfigError

FILE_NAME = "results.jsonl"

Key = tuple[str | int | float | None, ...]
"""What makes a fact unique."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One start of the program: how to make its figures again."""

    kind: ClassVar[str] = "run"
    run: int
    """Number in this folder, from 0."""
    command: str
    """Command line."""
    commit: str
    """Commit of the code; empty if unknown."""
    started: str
    """UTC time in ISO form."""
    hardware: str
    """Processor or GPU, in a sentence."""
    software: str
    """Versions of Python, PyTorch and transformers."""
    model: str
    """Name of the model."""
    model_hash: str
    """Hash of its weights."""
    dtype: str
    """Type of its weights and KV."""
    profile: str
    """Name of the profile that gave the defaults."""
    pruning: Mapping[str, Any] = field(default_factory=dict)
    """The profile's pruning parameters, which every arm starts from."""

    @property
    def key(self) -> Key:
        """Its number."""
        return (self.kind, self.run)


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
_KINDS: dict[str, type[Fact]] = {cls.kind: cls for cls in (Run, Trial, CorrelationCurve, Timing)}


class ResultStore:
    """The results file of one folder.

    Args:
        folder: created if it is not there.
        resume: go on with results that are there already.

    Raises:
        ConfigError: results are there and `resume` is not set, or a line cannot be read.
    """

    def __init__(self, folder: Path, *, resume: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / FILE_NAME
        if not resume and self.path.exists() and self.path.stat().st_size:
            raise ConfigError(
                f"{self.path} holds results already: give --resume to go on with them, or another "
                "--out"
            )
        _cut_torn_line(self.path)
        self._facts = {fact.key: fact for fact in read_facts(folder)}

    def __contains__(self, key: Key) -> bool:
        return key in self._facts

    def trial(self, key: Key) -> Trial | None:
        """The trial of that key, if it was measured."""
        fact = self._facts.get(key)
        return fact if isinstance(fact, Trial) else None

    def append(self, facts: Iterable[Fact]) -> None:
        """Writes facts through to the disk."""
        with self.path.open("a", encoding="utf-8") as file:
            for fact in facts:
                file.write(json.dumps({"kind": fact.kind, **dataclasses.asdict(fact)}) + "\n")
                self._facts[fact.key] = fact
            file.flush()
            os.fsync(file.fileno())

    def open_run(self, run: Run) -> Run:
        """Writes a run's own line, numbered after those that are there.

        Raises:
            ConfigError: earlier runs of this folder were of another model, type or profile.
        """
        earlier = [fact for fact in self._facts.values() if isinstance(fact, Run)]
        for name in ("model_hash", "dtype", "pruning"):
            for other in earlier:
                if getattr(other, name) != getattr(run, name):
                    raise ConfigError(
                        f"{self.path} was begun with another {name} ({getattr(other, name)!r}, now "
                        f"{getattr(run, name)!r}): such results do not mix; choose another --out"
                    )
        numbered = dataclasses.replace(run, run=len(earlier))
        self.append([numbered])
        return numbered


def read_facts(folder: Path) -> list[Fact]:
    """Every fact of a folder in the order of writing; of equal keys the first.

    Raises:
        ConfigError: a line cannot be read.
    """
    path = folder / FILE_NAME
    facts: dict[Key, Fact] = {}
    for number, line in enumerate(_lines(path), start=1):
        try:
            values = json.loads(line)
            fact = _KINDS[values.pop("kind")](**values)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{path} line {number} is no result ({error}): the file was changed or comes from "
                "another version; choose another folder"
            ) from error
        facts.setdefault(fact.key, fact)
    return list(facts.values())


def _lines(path: Path) -> Iterator[str]:
    if path.exists():
        with path.open(encoding="utf-8") as file:
            yield from file


def _cut_torn_line(path: Path) -> None:
    """Removes what a killed run left of its last line."""
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)
