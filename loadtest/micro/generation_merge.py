"""Summaries of whole generations, also of several commands' together."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtest.micro.bounds import at_least
from loadtest.micro.generation_rows import DELTA, DENSE
from loadtest.spread import paired_ratios, spread
from shared.errors import ConfigError

_BOUND = 1.8
"""Least of a dense generation over DELTA's."""

_OF_THE_BOUND = {"shape": "r1-qwen-1.5b", "batch": 64, "context": 18_432, "page_budget": 64}

_SAME = (
    "benchmark",
    "shape",
    "batch",
    "prompt_tokens",
    "context",
    "full_layers",
    "page_budget",
    "window",
    "contexts",
    "commit",
    "uncommitted_changes",
    "device",
    "torch",
    "triton",
)
"""What runs must have in common to be put together."""


def summary(result: dict[str, Any]) -> dict[str, Any]:
    """Medians and ratios of the runs, and whether what the issue asks for is there.

    Returns:
        `seconds` and `tokens_per_s` by arm, `dense_over_delta` paired by turn, `bounds`.
    """
    runs = result["runs"]
    seconds = {arm: [run["seconds"] for run in some] for arm, some in runs.items()}
    ratio = paired_ratios(seconds[DENSE], seconds[DELTA])
    bounds = {}
    if all(result[key] == value for key, value in _OF_THE_BOUND.items()):
        bounds["generation, dense over delta"] = at_least(ratio["median"], _BOUND)
    return {
        "seconds": {arm: spread(some) for arm, some in seconds.items()},
        "tokens_per_s": {
            arm: spread([run["tokens_per_s"] for run in some]) for arm, some in runs.items()
        },
        "dense_over_delta": ratio,
        "bounds": bounds,
    }


def merge_files(paths: Sequence[Path]) -> dict[str, Any]:
    """One result of several commands' files, whose turns follow each other.

    Raises:
        ConfigError: a file cannot be read, holds no timed generation, or they differ in size,
            commit, device or versions.
    """
    results = [_read(path) for path in paths]
    first = results[0]
    for path, other in zip(paths, results, strict=True):
        differing = [key for key in _SAME if other[key] != first[key]]
        if differing:
            raise ConfigError(
                f"{path} differs from {paths[0]} in {', '.join(differing)}: only runs of the same "
                "work on the same device can be put together"
            )
    merged = first | {
        "runs": {arm: [run for r in results for run in r["runs"][arm]] for arm in first["runs"]},
        "equal_tokens": [turn for each in results for turn in each["equal_tokens"]],
        "command": "; ".join(each["command"] for each in results),
    }
    return merged | summary(merged)


def _read(path: Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(result, dict) or not {*_SAME, "runs", "command"} <= result.keys():
        raise ConfigError(
            f"{path} is no result of timed generations: python -m loadtest.micro.generation "
            "--device cuda --json makes one"
        )
    return result
