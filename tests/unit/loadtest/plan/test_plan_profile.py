"""Profile files: what is written is read, what is wrong is named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadtest.plan.profile_file import profile_of, read_profile, write_profile
from shared.errors import ConfigError
from tests.support.plan_parts import made_profile, profile_json


def test_a_written_profile_is_read_again(tmp_path: Path):
    profile = made_profile(origin={"command": "tandem plan measure"})
    write_profile(profile, tmp_path / "new" / "measured.json")
    assert read_profile(tmp_path / "new" / "measured.json") == profile


def drop(*path: Any) -> Callable[[dict[str, Any]], None]:
    def change(found: Any) -> None:
        for key in path[:-1]:
            found = found[key]
        del found[path[-1]]

    return change


def put(value: Any, *path: Any) -> Callable[[dict[str, Any]], None]:
    def change(found: Any) -> None:
        for key in path[:-1]:
            found = found[key]
        found[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (drop("limits"), "limits is missing"),
        (drop("model", "token_bytes"), "model.token_bytes is missing"),
        (put(1, "surprise"), "surprise is unknown"),
        (put("fast", "prefill", 0, "seconds"), r"prefill\[0\].seconds is 'fast', but must be a"),
        (put(float("nan"), "decode", 3, "seconds"), r"decode\[3\].seconds is nan"),
        (put(0, "decode", 1, "seconds"), r"decode\[1\].seconds is 0.0, but must be above 0"),
        (put(1.5, "limits", "max_batch"), "limits.max_batch is 1.5, but must be a whole number"),
        (put(True, "limits", "max_batch"), "limits.max_batch is True"),
        (put({}, "prefill"), "prefill must be a list"),
        (put("", "transport"), "transport must be a text"),
        (put(2, "format"), "format is 2, this version reads 1"),
        (put(9, "model", "whole_layers"), "model.whole_layers must be 0 to 8"),
        (put([0.5, 0.2], "prefill", 0, "ready"), "ready must be ascending shares"),
        (put([], "prefill", 0, "ready"), "ready must be ascending shares"),
        (put(77, "prefill", 0, "tokens"), "prefill has other lengths for some keep rates"),
        (put("h2o", "decode", 0, "policy"), "policy must be one of dense, delta"),
        (drop("decode", 0), "decode of policy dense lacks or repeats a batch"),
        (put(128, "limits", "max_batch"), "measured up to batch 64, below limits.max_batch 128"),
        (drop("transfer", 0), "transfer must have 2 or more different sizes"),
        (put(-1, "overheads", "handoff_s"), "overheads must not be negative"),
        (put({"prefill": 0.5}, "contention"), "contention must be at least 1"),
        (put(0, "pruning", "keep_rate"), "pruning.keep_rate must be above 0"),
        (put([], "origin"), "origin must be an object"),
    ],
)
def test_what_is_wrong_is_named(change: Callable[[dict[str, Any]], None], said: str):
    found = json.loads(json.dumps(profile_json()))
    change(found)
    with pytest.raises(ConfigError, match=said):
        profile_of(found)


def test_a_profile_without_unpruned_prefill_is_refused():
    found = profile_json()
    found["prefill"] = [point for point in found["prefill"] if point["keep_rate"] < 1]
    with pytest.raises(ConfigError, match="no point of keep_rate 1"):
        profile_of(found)


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_files_that_are_no_profile_are_refused(tmp_path: Path, text: str | None):
    path = tmp_path / "measured.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match="measured profile"):
        read_profile(path)
