"""Reads what the benches of prefill, decode steps and generations wrote, as points to draw."""

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from shared.errors import ConfigError

_CASE = re.compile(r"(?P<shape>\S+) (?P<batch>\d+) x (?P<context>\d+)")
"""Names of cases of decode steps."""


PREFILL, STEPS = "prefill", "steps"

_NORMAL = "normal"
"""How weights are drawn where a result says nothing of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Milliseconds: of a prompt's pass, or of a step."""

    median: float
    low: float
    high: float


Arms = dict[str, dict[int, Point]]
"""By arm, by tokens."""


def _arms() -> defaultdict[str, Arms]:
    return defaultdict(dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoints:
    """Everything of some result files, panel by panel."""

    ttft: defaultdict[str, Arms] = field(default_factory=_arms)
    """Whole prefills, by a model's shape."""
    steps: defaultdict[str, Arms] = field(default_factory=_arms)
    """Steps at one context, by shape and batch."""
    courses: defaultdict[str, Arms] = field(default_factory=_arms)
    """Steps along whole generations, by shape and batch."""
    sources: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Devices and commits, of `PREFILL` and of `STEPS`."""

    def panels(self) -> list[str]:
        """Shapes and batches of steps."""
        return sorted({*self.steps, *self.courses})


def read_results(paths: Sequence[Path]) -> MeasuredPoints:
    """Points of some files; where two have the same one, that of the later file.

    Raises:
        ConfigError: a file cannot be read, or holds no times of these benches.
    """
    found = MeasuredPoints()
    for path in paths:
        for result in _parts(_read(path)):
            _take(result, found, path=path)
    return found


def _parts(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Results in a file: one, or those of a command that ran several benches."""
    if "benchmark" in result:
        return [result]
    parts = [part for part in result.values() if isinstance(part, dict) and "benchmark" in part]
    return parts or [result]


def _take(result: dict[str, Any], found: MeasuredPoints, *, path: Path) -> None:
    readers = {"prefill_pass": _prefill, "decode_step": _steps, "generation": _generation}
    reader = readers.get(str(result.get("benchmark")))
    if reader is None:
        raise ConfigError(
            f"{path} is no result of {', '.join(readers)}: run python -m loadtest.micro.<that> "
            "--device cuda --json"
        )
    try:
        count = reader(result, found)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{path} is not as {result['benchmark']} writes it ({error!r}): it is damaged, or of "
            "another version"
        ) from error
    if not count:
        raise ConfigError(f"{path} has no times: it was taken without a GPU")
    commit = str(result.get("commit", ""))[:7] or "unknown commit"
    kind = PREFILL if reader is _prefill else STEPS
    found.sources[kind].add(f"{result.get('device', 'unknown device')}, {commit}")


def _read(path: Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(result, dict):
        raise ConfigError(f"{path} holds no object; `--json` writes one")
    return result


def _prefill(result: Mapping[str, Any], found: MeasuredPoints) -> int:
    """Adds every arm at every length; returns how many points."""
    count = 0
    weights = result.get("weights", _NORMAL)
    name = result["shape"] + (f", {weights} weights" if weights != _NORMAL else "")
    panel = found.ttft[name] if result.get("tokens") else {}
    for tokens, at in result.get("tokens", {}).items():
        for arm_name, arm in at["arms"].items():
            panel.setdefault(arm_name, {})[int(tokens)] = _point(arm["seconds"], 1e3)
            count += 1
    return count


def _steps(result: Mapping[str, Any], found: MeasuredPoints) -> int:
    """Adds every arm and peer of every case; returns how many points."""
    count = 0
    for name, case in result["cases"].items():
        sizes = _CASE.fullmatch(name)
        if sizes is None or "step_ms" not in case:
            continue
        context = int(sizes["context"])
        panel = found.steps[_panel(sizes["shape"], sizes["batch"])]
        peers = {
            peer: told["step_ms"]
            for peer, told in case.items()
            if isinstance(told, dict) and "median" in told.get("step_ms", {})
        }
        for arm, times in {**case["step_ms"], **peers}.items():
            panel.setdefault(arm, {})[context] = _point(times, 1.0)
            count += 1
    return count


def _generation(result: Mapping[str, Any], found: MeasuredPoints) -> int:
    """Adds the courses of every arm; returns how many points."""
    count = 0
    panel = found.courses[_panel(result["shape"], result["batch"])] if "runs" in result else {}
    for arm, runs in result.get("runs", {}).items():
        windows = zip(*(run["step_ms"] for run in runs), strict=True)
        panel[arm] = {
            tokens: Point(median=median(each), low=min(each), high=max(each))
            for tokens, each in zip(result["contexts"], windows, strict=True)
        }
        count += len(panel[arm])
    return count


def _panel(shape: str, batch: object) -> str:
    return f"{shape}, batch {batch}"


def _point(times: Mapping[str, float], factor: float) -> Point:
    return Point(
        median=factor * times["median"], low=factor * times["min"], high=factor * times["max"]
    )
