"""Facts on disk: one JSON line each, written as soon as it is known.

A run that was killed goes on where it stopped: what is in the file is not measured again. Every
line but a run's own names its run, so that each figure can say command, hardware and commit.
"""

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from shared.errors import ConfigError

FILE_NAME = "results.jsonl"

Key = tuple[str | int | float | None, ...]
"""What makes a fact unique."""


class Fact(Protocol):
    """A frozen dataclass of plain JSON values."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def kind(self) -> str:
        """Names the class in the file."""

    @property
    def run(self) -> int:
        """The run that it came from."""

    @property
    def key(self) -> Key:
        """Everything that decides the outcome."""


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
    sparsity: Mapping[str, Any] = field(default_factory=dict)
    """The profile's page selection, where arms start from it."""

    @property
    def key(self) -> Key:
        """Its number."""
        return (self.kind, self.run)


_ONE_A_FOLDER = ("model_hash", "dtype", "pruning", "sparsity")
"""Fields of a run that all runs of a folder share."""


class FactStore:
    """The results file of one folder.

    Args:
        folder: created if it is not there.
        kinds: classes of facts that it may hold beside runs.
        resume: go on with results that are there already.

    Raises:
        ConfigError: results are there and `resume` is not set, a line cannot be read, or the folder
            cannot be used.
    """

    def __init__(self, folder: Path, *, kinds: Sequence[type[Fact]], resume: bool) -> None:
        self.path = folder / FILE_NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.path.touch()
        except OSError as error:
            raise ConfigError(
                f"{folder} cannot hold results ({error}): it must be a folder that may be written "
                "to; choose another --out"
            ) from error
        if not resume and self.path.stat().st_size:
            raise ConfigError(
                f"{self.path} holds results already: give --resume to go on with them, or another "
                "--out"
            )
        _cut_torn_line(self.path)
        self._facts = {fact.key: fact for fact in facts_of(folder, kinds=kinds)}

    def __contains__(self, key: Key) -> bool:
        return key in self._facts

    def get(self, key: Key) -> Fact | None:
        """The fact of that key, if it is known."""
        return self._facts.get(key)

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
        _refuse_mixing([*earlier, run], path=self.path)
        numbered = dataclasses.replace(run, run=len(earlier))
        self.append([numbered])
        return numbered


def facts_of(folder: Path, *, kinds: Sequence[type[Fact]]) -> list[Fact]:
    """Every fact of a folder in the order of writing, runs included; of equal keys the first.

    Raises:
        ConfigError: a line cannot be read.
    """
    facts: dict[Key, Fact] = {}
    for fact in _parsed(folder / FILE_NAME, kinds=kinds):
        facts.setdefault(fact.key, fact)
    return list(facts.values())


def merge_facts(folders: Sequence[Path], *, store: FactStore, kinds: Sequence[type[Fact]]) -> int:
    """Adds the facts of several folders to a store, their runs numbered after its own.

    Returns:
        How many facts it added beside the runs; those whose key is known are left out.

    Raises:
        ConfigError: a folder has no results, or they are not of the store's model, type or profile.
    """
    read = [facts_of(folder, kinds=kinds) for folder in folders]
    for folder, facts in zip(folders, read, strict=True):
        runs = {fact.run for fact in facts if isinstance(fact, Run)}
        if not facts or any(fact.run not in runs for fact in facts):
            raise ConfigError(
                f"{folder} has no results, or some without the run that they came from: name the "
                "--out folders of evaluations"
            )
    _refuse_mixing(
        [run for facts in read for run in facts if isinstance(run, Run)], path=store.path
    )
    added = 0
    for facts in read:
        numbers = {run.run: store.open_run(run).run for run in facts if isinstance(run, Run)}
        new = [fact for fact in facts if not isinstance(fact, Run) and fact.key not in store]
        store.append(dataclasses.replace(fact, run=numbers[fact.run]) for fact in new)
        added += len(new)
    return added


def first_run(folder: Path) -> Run | None:
    """The run that a folder's results begin with; None where there are none.

    Raises:
        ConfigError: they begin with something else.
    """
    first = next(_parsed(folder / FILE_NAME, kinds=()), None)
    assert first is None or isinstance(first, Run), "no other kind is known here"
    return first


def _refuse_mixing(runs: Sequence[Run], *, path: Path) -> None:
    """Raises ConfigError unless all runs are of one model, type and profile."""
    for run in runs[1:]:
        for name in _ONE_A_FOLDER:
            first, found = getattr(runs[0], name), getattr(run, name)
            if first != found:
                raise ConfigError(
                    f"{path} was begun with another {name} ({first!r}, now {found!r}): such "
                    "results do not mix; choose another --out"
                )


def _parsed(path: Path, *, kinds: Sequence[type[Fact]]) -> Iterator[Fact]:
    """The facts of a file's lines, as they are asked for."""
    classes: list[type[Fact]] = [Run, *kinds]
    known = {str(cls.kind): cls for cls in classes}
    for number, line in enumerate(_lines(path), start=1):
        try:
            values = json.loads(line)
            fact = known[values.pop("kind")](**values)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{path} line {number} is no result ({error}): the file was changed or comes from "
                "another version; choose another folder"
            ) from error
        yield fact


def _lines(path: Path) -> Iterator[str]:
    """Whole lines of a file that is there; what a killed run left of its last one is none."""
    try:
        content = path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read ({error}): it is no file of results; choose another folder"
        ) from error
    yield from content.split("\n")[:-1]


def _cut_torn_line(path: Path) -> None:
    """Removes what a killed run left of its last line."""
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)
