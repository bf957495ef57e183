"""The bench of whole generations: tokens against the PyTorch path, courses, several commands."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from decode_service.engine.batched.runner import BatchRunner
from loadtest.micro import generation, generation_parity
from loadtest.micro.generation_merge import merge_files, summary
from loadtest.micro.generation_parity import check_generation
from loadtest.micro.generation_rows import (
    DELTA,
    DENSE,
    GenerationPlan,
    GenerationRows,
    generation_of,
)
from loadtest.micro.generation_times import _ends, time_generations
from loadtest.micro.models import random_on_device
from loadtest.micro.step_shapes import TINY
from shared.errors import ConfigError, InternalError
from shared.types.methods import PruningParams, SparsityParams
from tests.support.kernel_rows import DEVICE

on_cpu = pytest.mark.skipif(DEVICE.type == "cuda", reason="a GPU times whole models")
CPU = torch.device("cpu")
PLAN = GenerationPlan(
    config=TINY.config,
    batch=2,
    prompt_tokens=62,
    context=67,
    pruning=PruningParams(pruning_layer=3, deferred_layers=2),
    sparsity=SparsityParams(full_layers=(0, 1, 3), page_budget=4, recency_pages=1),
)


@pytest.fixture(scope="module")
def model():
    return random_on_device(PLAN.config, device=DEVICE, dtype=torch.float32)


@on_cpu
def test_without_a_gpu_it_compares_and_gives_no_time():
    lines: list[str] = []
    plan = generation_of("smollm2-135m", batch=2, prompt_tokens=4, context=64)
    result = generation.bench_generation(
        device=DEVICE, shape="smollm2-135m", plan=plan, generations=1, progress=lines.append
    )
    assert set(result["parity"]) == {DENSE, DELTA}
    assert all(arm["tokens"] == 6 for arm in result["parity"].values())
    assert "runs" not in result
    assert lines[0].startswith("tiny model: ")
    generation._print(result)


def test_a_wrong_token_stops_it(model, monkeypatch: pytest.MonkeyPatch):
    step = BatchRunner.step

    def wrong(self, rows):
        tokens = step(self, rows)
        for row in rows:
            row.generated[-1] ^= 1
        return [replace(token, token_id=token.token_id ^ 1) for token in tokens]

    monkeypatch.setattr(BatchRunner, "step", wrong)
    with pytest.raises(InternalError, match="dense: 10 of 10 tokens are not the PyTorch path's"):
        check_generation(model, PLAN)
    monkeypatch.setattr(generation_parity, "NEAR_TIE", 1e9)
    found = check_generation(model, PLAN)
    assert found[DELTA] == {"tokens": 10, "near_ties": 10, "page_ties": 0}


def test_a_tie_of_pages_is_counted_where_pages_are_chosen(model, monkeypatch: pytest.MonkeyPatch):
    step, calls = BatchRunner.step, 0

    def once(self, rows):
        nonlocal calls
        calls += 1
        tokens = step(self, rows)
        if rows[0].policy.name != DELTA or rows[0].steps != 4:
            return tokens
        return [replace(tokens[0], token_id=tokens[0].token_id ^ 1), *tokens[1:]]

    monkeypatch.setattr(BatchRunner, "step", once)
    found = check_generation(model, PLAN)
    assert calls == 10
    assert found[DENSE]["page_ties"] == 0
    assert found[DELTA]["page_ties"] == 1


def test_generations_take_turns_and_tell_their_course(model):
    lines: list[str] = []
    plan = replace(PLAN, prompt_tokens=63, context=66)
    found = time_generations(model, plan, generations=2, window=2, progress=lines.append)
    assert found["contexts"] == [65, 66]
    for arm in (DENSE, DELTA):
        runs = found["runs"][arm]
        assert [len(run["step_ms"]) for run in runs] == [2, 2]
        for run in runs:
            whole = run["step_ms"][0] * 2 + run["step_ms"][1]
            assert whole == pytest.approx(run["seconds"] * 1000)
            assert run["tokens_per_s"] == pytest.approx(6 / run["seconds"])
    dense, delta = (found["runs"][arm][0] for arm in (DENSE, DELTA))
    # Slots of 6 layers at positions 63 to 65.
    assert dense["attended"] == dense["dense"] == 6 * (64 + 65 + 66)
    # From 65 slots on, 5 pages, the three sparse layers read 4: 16 slots fewer in each step.
    assert delta["attended"] == dense["dense"] - 2 * 3 * 16
    assert found["equal_tokens"] == [{"equal": 4, "of": 4}] * 2
    assert [line.split(":")[0] for line in lines[1:]] == [DENSE, DELTA] * 2


def test_pages_are_granted_for_the_whole_and_given_back(model):
    held = GenerationRows(model, PLAN, copies=2)
    with held.rows(DELTA) as rows:
        assert len(rows) == 4
        pages = [page for row in rows for page in row.prompt.pages.rest.pages]
        assert len(set(pages)) == len(pages) == 4 * 5
        held.cache.check_integrity()
        with pytest.raises(InternalError, match="got no pages: pages_full"), held.rows(DENSE):
            pass


def test_windows_end_with_the_generation():
    assert _ends(PLAN, 128) == [5]
    assert _ends(PLAN, 5) == [5]
    assert _ends(replace(PLAN, prompt_tokens=1), 33) == [33, 66]


@pytest.mark.parametrize(
    "sizes", [{"batch": 0}, {"prompt_tokens": 0}, {"context": 62}, {"context": 1024}]
)
def test_sizes_that_make_no_generation(sizes: dict[str, Any]):
    with pytest.raises(ConfigError, match="at least one row"):
        replace(PLAN, **sizes)


def _result(dense: float, delta: float, **changed: object) -> dict[str, Any]:
    runs = {
        arm: [{"seconds": s, "tokens_per_s": 100 / s, "step_ms": [s]}]
        for arm, s in ((DENSE, dense), (DELTA, delta))
    }
    made = {
        "benchmark": "generation",
        "shape": "r1-qwen-1.5b",
        "batch": 64,
        "prompt_tokens": 16,
        "context": 18_432,
        "full_layers": [0, 1, 2, 14, 22],
        "page_budget": 64,
        "window": 128,
        "contexts": [18_432],
        "commit": "c",
        "uncommitted_changes": False,
        "device": "d",
        "torch": "2",
        "triton": "3",
        "parity": {},
        "runs": runs,
        "equal_tokens": [{"equal": 1, "of": 1}],
        "command": "run",
    }
    made |= changed
    return made | summary(made)


def _written(folder: Path, *results: object) -> list[Path]:
    paths = [folder / f"{number}.json" for number in range(len(results))]
    for path, result in zip(paths, results, strict=True):
        path.write_text(json.dumps(result))
    return paths


def test_commands_are_put_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    paths = _written(tmp_path, _result(100, 50), _result(110, 62))
    generation.main(["--merge", *map(str, paths), "--json"])
    merged = json.loads(capsys.readouterr().out)
    assert [run["seconds"] for run in merged["runs"][DENSE]] == [100, 110]
    assert merged["command"] == "run; run"
    assert merged["equal_tokens"] == [{"equal": 1, "of": 1}] * 2
    assert merged["dense_over_delta"]["median"] == pytest.approx((2 + 110 / 62) / 2)
    bound = merged["bounds"]["generation, dense over delta"]
    assert bound["met"] is True
    assert bound["at_least"] == 1.8
    generation.main(["--merge", *map(str, paths)])
    assert "at least 1.8: met" in capsys.readouterr().out


def test_the_bound_is_of_the_whole_generation_alone():
    assert _result(100, 60)["bounds"]["generation, dense over delta"]["met"] is False
    assert _result(100, 50, context=2048)["bounds"] == {}


def test_what_cannot_be_put_together(tmp_path: Path):
    (first, other) = _written(tmp_path, _result(100, 50), _result(100, 50, device="e", batch=8))
    with pytest.raises(ConfigError, match=r"differs from .* in batch, device"):
        merge_files([first, other])
    other.write_text("{")
    with pytest.raises(ConfigError, match="cannot be read as JSON"):
        merge_files([first, other])
    other.write_text('{"benchmark": "generation"}')
    with pytest.raises(ConfigError, match="no result of timed generations"):
        merge_files([first, other])


def test_bad_flags_say_what_is_wrong(capsys: pytest.CaptureFixture[str]):
    for flags, text in (
        (["--device", "cpu", "--shape", "gpt"], "no model shape 'gpt'"),
        (["--device", "cpu", "--generations", "0"], "0 generations"),
        (["--merge", "/nowhere.json"], "cannot be read"),
        (["--merge", "a", "--to", "9", "--device", "cuda"], "so --device, --to would say nothing"),
    ):
        with pytest.raises(SystemExit):
            generation.main(flags)
        assert text in capsys.readouterr().err
