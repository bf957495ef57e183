"""`tandem bench pair` without a pair: its settings, its flags and what it prints."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from deploy import bench_pair, cli, pair_fit
from deploy.bench_pair import LOGS, PARITY_FILE, RESULT_FILE, PairRequest, model_config
from deploy.pair_fit import fitted, fitting_prompts
from deploy.pair_settings import PairSizes, pair_tables, write_tables
from deploy.pair_tables import print_result
from deploy.settings import ROLE_NAMES, load_role
from loadtest.pair.plan import CPU_PLAN, GPU_PLAN, Load, PairPlan
from loadtest.pair.summary import limits_apply
from loadtest.pair.surroundings import gpu_facts
from shared.errors import ConfigError, ModelLoadError
from shared.model.shapes import MODEL_SHAPES

LLAMA = MODEL_SHAPES["llama-3.1-8b"]


def test_settings_hold_what_is_asked_and_load(tmp_path: Path) -> None:
    sizes = PairSizes.of(PairPlan(prompts=(10_000, 32_000), new_tokens=256))
    tables = pair_tables(LLAMA, sizes, dtype="bfloat16", transports=("nixl", "grpc"))
    file = write_tables(tables, tmp_path / "settings.toml")
    prefill, decode, gateway = (
        load_role(role, file=file).value for role in ("prefill", "decode", "gateway")
    )
    token_bytes = 131_072
    longest = 32_256 * token_bytes
    assert decode.kv_bytes >= 16 * longest
    assert decode.slab_bytes >= 2 * longest
    assert prefill.buffer_bytes >= 2 * longest
    assert prefill.max_model_len == decode.max_model_len >= 32_256
    assert decode.max_batch == 16
    assert gateway.queue_tokens >= 16 * 32_256
    assert prefill.queue_tokens >= 16 * 32_256
    assert (prefill.dtype, decode.transports) == ("bfloat16", ("nixl", "grpc"))
    assert set(tables) == set(ROLE_NAMES)
    assert "profile" not in tables["prefill"], "each model has its own"
    named = pair_tables(LLAMA, sizes, dtype="float32", transports=("grpc",), profile="paper")
    file = write_tables(named, tmp_path / "named.toml")
    assert load_role("decode", file=file).value.profile == "paper"


def test_a_context_is_not_longer_than_the_model_s() -> None:
    sizes = PairSizes(longest=200_000, at_once=1)
    tables = pair_tables(LLAMA, sizes, dtype="float32", transports=("grpc",))
    assert tables["decode"]["max_model_len"] == LLAMA.max_position


def test_every_dtype_of_workers_has_a_size_and_others_are_named() -> None:
    sizes = PairSizes(longest=1000, at_once=1)
    half, whole = (
        pair_tables(LLAMA, sizes, dtype=dtype, transports=("grpc",))["decode"]["kv_bytes"]
        for dtype in ("float16", "float32")
    )
    assert whole == 2 * half
    with pytest.raises(ConfigError, match="dtype 'int8' is unknown"):
        pair_tables(LLAMA, sizes, dtype="int8", transports=("grpc",))


def spread(middle: float) -> dict[str, float]:
    return {"median": middle, "min": middle - 1, "max": middle + 1}


def result() -> dict[str, Any]:
    arm = {
        "requests": 4, "kv_bytes": 3 << 20, "transports": ["nixl"], "ttft_ms": spread(100.0),
        "ttft_of_full": spread(1.0), "engine_ttft_ms": spread(97.0), "added_ttft_ms": spread(3.0),
        "exposed_transfer_ms": spread(2.0), "exposed_share": spread(0.02),
        "second_token_ms": spread(7.0), "tokens_per_s": spread(150.0),
        "tokens_per_s_in_all": spread(140.0),
    }  # fmt: skip
    bare = {**arm, "ttft_of_full": None, "tokens_per_s": None, "tokens_per_s_in_all": None}
    return {
        "cells": [
            {
                "prompt_tokens": 10_000,
                "at_once": 1,
                "new_tokens": 256,
                "arms": {"full": arm, "delta": bare},
            }
        ],
        "limits": [{"limit": "ms added", "measured": 3.0, "at_most": 6.0, "met": True}],
        "parity": {
            "equal": False,
            "model": "small",
            "devices": {"prefill": "cuda:0", "decode": "cuda:1"},
            "dtypes": {"bfloat16": {"equal": False, "level": 0.5, "arms": {
                "full": {
                    "answers": 3, "steps": 144, "steps_compared": 140, "equal": False,
                    "prompt_tokens": [500, 1500], "kept_tokens": [], "kept_alike": None,
                    "drift": 0.012, "transports": ["nixl"],
                },
                "claa10": {
                    "answers": 3, "steps": 144, "steps_compared": 144, "equal": True,
                    "prompt_tokens": [500, 1500], "kept_tokens": [50, 150], "kept_alike": 0.98,
                    "drift": 0.0, "transports": ["nixl"],
                },
            }}},
        },
        "pair": {"model": "m", "workers": [{"role": "prefill", "device": "cuda:0"}]},
        "gpus": [{"name": "H200"}, {"name": "H200"}],
        "command": "tandem bench pair",
        "commit": "0123456789abcdef",
        "uncommitted_changes": False,
        "hardware": {"cpu": "EPYC", "cores": 2},
    }  # fmt: skip


def test_tables_are_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(result())
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if line.startswith("|")]
    heads = [row for row in rows if row.startswith("|---")]
    assert len(heads) == 3
    assert {row.count("|") for row in rows} == {9, 13, 5}
    full = next(row for row in rows if row.startswith("| full | 100.0 (99.0 to 101.0)"))
    assert "2.0 %" in full
    assert any(row.startswith("| DELTA |") and " - |" in row for row in rows)
    assert "| full | 500, 1500 | - | - | 140 of 144 | NO | 1.2e-02 | nixl |" in rows
    assert any("| 50, 150 | 98.0 % | 144 of 144 | yes |" in row for row in rows)
    assert "over nixl. H200, H200; EPYC, 2 cores; commit 0123456789ab." in lines[-1]


def test_parity_alone_tells_where_it_ran(capsys: pytest.CaptureFixture[str]) -> None:
    timed = ("cells", "limits", "pair")
    print_result({name: value for name, value in result().items() if name not in timed})
    text = capsys.readouterr().out
    assert text.startswith("Greedy tokens of small in bfloat16, prefill on cuda:0")
    assert "Model small; prefill on cuda:0, decode on cuda:1; KV over nixl. H200, H200;" in text
    assert "first token" not in text


@pytest.mark.parametrize(
    "flags",
    [
        ["--at-once", "1,16", "--rounds", "2"],
        ["--arms", "full,fast"],
        ["--url", "http://127.0.0.1:1"],
        ["--url", "http://127.0.0.1:1", "--grpc", "h:2", "--parity", "smollm2"],
        ["--prompts", "many"],
        ["--timeline", "/nowhere/at/all.png"],
        ["--dtype", "int4", "--parity", "smollm2"],
        ["--url", "https://127.0.0.1:1", "--grpc", "h:2"],
        ["--url", "http://", "--grpc", "h:2"],
        ["--prefill-gpus", "x"],
        ["--decode-gpus", "-1"],
        ["--parity", "smollm2", "--parity-dtypes", "float32,int4"],
        ["--parity", "smollm2", "--dtype", "float32"],
        ["--parity", "smollm2", "--prompts", "2000"],
        ["--parity", "smollm2", "--short-rounds", "6"],
        ["--parity", "smollm2", "--timeline", "one.png"],
    ],
    ids=str,
)
def test_flags_that_do_not_fit(flags: list[str], tmp_path: Path) -> None:
    found = CliRunner().invoke(cli.app, ["bench", "pair", "--out", str(tmp_path), *flags])
    assert isinstance(found.exception, ConfigError)


@pytest.mark.parametrize("name", [RESULT_FILE, PARITY_FILE, LOGS])
def test_results_are_not_written_over(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(ConfigError, match="another --out"):
        PairRequest(plan=PairPlan(), model="m", out=tmp_path)


@pytest.mark.parametrize(
    ("parity", "code"), [(None, 0), ({"equal": True}, 0), ({"equal": False}, 1)], ids=str
)
def test_other_tokens_are_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, parity: dict[str, Any] | None, code: int
) -> None:
    async def measured(_: object) -> dict[str, Any]:
        found = {**result(), "gpus": []}
        return {**found, "parity": parity} if parity else {"cells": [], "limits": []}

    monkeypatch.setattr(bench_pair.PairRun, "all", measured)
    request = PairRequest(plan=PairPlan(), model="m", out=tmp_path, commit="abc")
    assert bench_pair.run_pair(request, command="x", as_json=True) == code
    assert '"commit": "abc"' in (tmp_path / RESULT_FILE).read_text()


def test_gpus_are_what_the_drivers_tool_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_facts() == {"gpus": [], "topology": ""}
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\n[ $1 = topo ] && echo 'GPU0 NV18' || echo '0, H200, GPU-1, 580.1, 143771 MiB'\n"
    )
    tool.chmod(0o755)
    found = gpu_facts()
    assert found["gpus"][0]["name"] == "H200"
    assert found["gpus"][0]["driver_version"] == "580.1"
    assert found["topology"] == "GPU0 NV18"


def asked(monkeypatch: pytest.MonkeyPatch, *flags: str) -> PairRequest:
    """What would be measured; nothing starts."""
    requests: list[PairRequest] = []

    def run(request: PairRequest, **_: object) -> int:
        requests.append(request)
        return 0

    monkeypatch.setattr(bench_pair, "run_pair", run)
    found = CliRunner().invoke(cli.app, ["bench", "pair", *flags])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return requests[0]


def test_prompts_that_do_not_fit_the_model_are_refused_before_a_pair_starts(
    monkeypatch: pytest.MonkeyPatch, tiny_model_dir: Path, tmp_path: Path
) -> None:
    positions = model_config(str(tiny_model_dir)).max_position
    flags = ("--model", str(tiny_model_dir), "--out", str(tmp_path), "--new-tokens", "10")
    longest = str(positions - 10)
    assert asked(monkeypatch, *flags, "--prompts", longest).plan.longest == positions
    with pytest.raises(ConfigError, match="give smaller --prompts or --new-tokens"):
        asked(monkeypatch, *flags, "--prompts", str(positions - 9))
    settings = tmp_path / "settings.toml"
    settings.write_text("[decode]\nmax_model_len = 64\n")
    with pytest.raises(ConfigError, match="the context of 64: give smaller --prompts"):
        asked(monkeypatch, *flags, "--prompts", longest, "--config", str(settings))


def test_without_prompts_those_that_fit_are_taken_and_others_are_told(
    monkeypatch: pytest.MonkeyPatch, tiny_model_dir: Path, tmp_path: Path
) -> None:
    model = ["--model", str(tiny_model_dir), "--out", str(tmp_path)]
    gpus = ["--prefill-gpus", "0", "--decode-gpus", "1"]
    plan = asked(monkeypatch, *model, *gpus, "--new-tokens", "9").plan
    assert plan.longest <= model_config(str(tiny_model_dir)).max_position
    assert fitting_prompts(131_072, new_tokens=256) == (10_000, 32_000)
    assert fitting_prompts(32_255, new_tokens=256) == (10_000,)
    assert fitting_prompts(8_192, new_tokens=256) == (7_000,)
    assert fitting_prompts(512, new_tokens=256) == (256,)
    with pytest.raises(ConfigError, match="smaller --new-tokens"):
        fitting_prompts(256, new_tokens=256)
    told: list[str] = []
    request = PairRequest(plan=PairPlan(), model=str(tiny_model_dir), out=tmp_path)
    short = dataclasses.replace(request, plan=PairPlan(new_tokens=9))
    assert fitted(short, prompts_given=False, tell=told.append).plan == plan
    assert "--prompts names others" in told[0]


def test_a_cpu_is_asked_for_less_and_flags_name_the_rest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out, gpus = ("--out", str(tmp_path)), ("--prefill-gpus", "0", "--decode-gpus", "1")
    assert asked(monkeypatch, *out).plan == CPU_PLAN
    given = ("--at-once", "16", "--rounds", "3", "--warm-ups", "0", "--short-rounds", "0")
    plan = asked(monkeypatch, *out, *given, "--new-tokens", "9").plan
    assert plan.loads == (Load(at_once=16, rounds=3, warm_ups=0),)
    assert (plan.short_rounds, plan.new_tokens, plan.prompts) == (0, 9, CPU_PLAN.prompts)
    on_gpus = asked(monkeypatch, *out, *gpus)
    assert (on_gpus.model, on_gpus.dtype, on_gpus.plan.loads) == (
        "smollm2", "bfloat16", GPU_PLAN.loads,
    )  # fmt: skip


@pytest.mark.parametrize("device", ["cuda:1", "cpu"])
def test_a_pair_that_runs_is_asked_for_what_its_devices_take(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: str
) -> None:
    def facts(_: str) -> dict[str, Any]:
        return {"workers": [{"role": "prefill", "device": device}]}

    monkeypatch.setattr(pair_fit, "pair_facts", facts)
    wanted = CPU_PLAN if device == "cpu" else GPU_PLAN
    request = PairRequest(plan=PairPlan(), model="m", out=tmp_path, url="http://h:1", grpc="h:2")
    assert pair_fit.usual_plan(request) == wanted


def test_parity_alone_times_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = ("--out", str(tmp_path), "--parity", "smollm2")
    request = asked(monkeypatch, *out, "--arms", "full,delta", "--parity-dtypes", "float32,float16")
    assert (request.model, request.parity) == ("", "smollm2")
    assert request.parity_dtypes == ("float32", "float16")
    assert request.plan.arms == ("full", "delta")
    both = asked(monkeypatch, *out, "--model", "smollm2", "--prompts", "500")
    assert (both.model, both.plan.prompts) == ("smollm2", (500,))


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TANDEM_PREFILL__DTYPE", "bfloat16"),
        ("TANDEM_DECODE__DTYPE", "float16"),
        ("TANDEM_DECODE__DEVICE", "cuda:0"),
    ],
)
def test_variables_that_would_make_the_slow_pair_another_are_refused(
    monkeypatch: pytest.MonkeyPatch,
    tiny_model_dir: Path,
    tmp_path: Path,
    variable: str,
    value: str,
) -> None:
    monkeypatch.setenv(variable, value)
    request = PairRequest(
        plan=PairPlan(), model="", out=tmp_path, parity=str(tiny_model_dir), prefill_gpus=(0,),
        decode_gpus=(1,),
    )  # fmt: skip
    with pytest.raises(ConfigError, match=f"unset {variable}"):
        bench_pair.run_pair(request, command="x", as_json=True)


def test_a_model_of_parity_that_there_is_not_is_told_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with pytest.raises(ModelLoadError, match="'nosuch' is unknown"):
        asked(monkeypatch, "--out", str(out), "--parity", "nosuch")
    assert not out.exists()


def test_limits_are_those_of_two_h200s_with_the_8b_shape() -> None:
    workers = [{"device": "cuda:0"}, {"device": "cuda:1"}]
    gpus = [{"name": "NVIDIA H200"}, {"name": "NVIDIA H200"}]
    assert limits_apply(LLAMA, workers=workers, gpus=gpus)
    assert not limits_apply(MODEL_SHAPES["smollm2-135m"], workers=workers, gpus=gpus)
    assert not limits_apply(LLAMA, workers=[workers[0]] * 2, gpus=gpus)
    assert not limits_apply(LLAMA, workers=[{"device": "cpu"}] * 2, gpus=[])
    assert not limits_apply(LLAMA, workers=workers, gpus=[{"name": "NVIDIA A100"}] * 2)
