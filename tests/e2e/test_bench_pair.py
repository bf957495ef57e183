"""`tandem bench pair` starts its own pairs: one to compare tokens with a slow one, one to time."""

import json
from pathlib import Path

import pytest

from deploy.bench_pair import PARITY_FILE, RESULT_FILE
from tests.support.processes import run_tandem

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def test_parity_and_times_of_a_drawn_model(tiny_model_dir: Path, tmp_path: Path) -> None:
    drawn, out = tmp_path / "drawn", tmp_path / "out"
    made = run_tandem("model", "random", str(drawn), "--shape", "tiny")
    assert made.returncode == 0, made.stderr
    assert made.stdout.strip() == str(drawn)
    sizes = ("--prompts", "300", "--new-tokens", "4", "--short-rounds", "0")
    loads = ("--at-once", "1", "--rounds", "1", "--warm-ups", "0")
    arms = ("--arms", "full,both10", "--transports", "grpc")
    done = run_tandem(
        "bench", "pair", "--model", str(drawn), "--parity", str(tiny_model_dir), "--out", str(out),
        *sizes, *loads, *arms, "--json",
        timeout_s=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == json.loads((out / RESULT_FILE).read_text())
    assert found["parity"]["equal"]
    arms = found["parity"]["dtypes"]["float32"]["arms"]
    assert all(arm["steps_compared"] for arm in arms.values())
    (cell,) = found["cells"]
    assert cell["arms"]["both10"]["kept_tokens"] < 300
    assert "[decode]" in found["settings"]
    logs = {path.name for path in (out / "logs").iterdir()}
    assert logs == {
        f"{pair}-{role}.log"
        for pair in ("slow", "parity-float32", "pair")
        for role in ("prefill-0", "decode-0", "gateway")
    }


def test_parity_alone(tiny_model_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run_tandem(
        "bench", "pair", "--parity", str(tiny_model_dir), "--out", str(out), "--arms",
        "full,claa10", "--transports", "grpc", "--parity-dtypes", "float32,bfloat16",
        timeout_s=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((out / RESULT_FILE).read_text())
    assert found["parity"] == json.loads((out / PARITY_FILE).read_text())
    assert found["parity"]["equal"]
    assert set(found["parity"]["dtypes"]) == {"float32", "bfloat16"}
    assert found["parity"]["dtypes"]["float32"]["arms"]["claa10"]["kept_alike"] == 1.0
    assert "cells" not in found
    assert "| CLAA 10 % |" in done.stdout
    for pair in ("slow", "parity-float32", "parity-bfloat16"):
        assert f"{pair}: answer 6 of 6: CLAA 10 %" in done.stderr


def test_shapes_and_folders_that_cannot_be_written(tmp_path: Path) -> None:
    unknown = run_tandem("model", "random", str(tmp_path / "m"), "--shape", "llama-4")
    assert unknown.returncode == 3
    assert "llama-3.1-8b" in unknown.stderr
    there = run_tandem("model", "random", str(tmp_path), "--shape", "tiny")
    assert there.returncode == 3
    assert "exists" in there.stderr
