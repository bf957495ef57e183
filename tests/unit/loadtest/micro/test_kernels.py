"""The bench of the kernels: what it reports without a GPU, and that a wrong kernel stops it."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from loadtest.micro.kernel_decode import DecodeCase, DecodeShape, check_decode
from loadtest.micro.kernel_parity import relative_error, require_small
from loadtest.micro.kernel_shapes import DECODE_SHAPES
from loadtest.micro.kernel_timing import against_matrix, against_memory
from loadtest.micro.kernels import bench_kernels
from shared.errors import ConfigError, InternalError
from tests.support.kernel_rows import DEVICE

SMALL = DecodeShape(
    batch=1,
    tokens=70,
    heads=2,
    kv_heads=1,
    head_dim=16,
    layers=4,
    copies=1,
    budget=4,
    recency=1,
)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="a GPU times whole models")
def test_without_a_gpu_it_compares_and_gives_no_time():
    lines: list[str] = []
    result = bench_kernels(device=DEVICE, sweep=True, progress=lines.append)
    decode_name, decode = next(iter(result["decode"].items()))
    prefill_name, prefill = next(iter(result["prefill"].items()))
    assert set(decode["errors"]) == {"dense", "score", "project", "select", "sparse"}
    assert set(prefill["errors"]) == {"window", "window_given_lse", "kept_queries"}
    assert "kernels" not in decode
    assert "copy" not in result
    ((products_name, products),) = result["products"].items()
    assert set(products["rows"]) == {"1", "3"}
    assert all("us" not in each for kinds in products["rows"].values() for each in kinds.values())
    assert lines == [f"decode {decode_name}", f"prefill {prefill_name}", products_name]
    assert json.loads(json.dumps(result)) == result


def test_a_size_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="no size has 'gpt-2' in its name"):
        bench_kernels(device=DEVICE, sweep=False, progress=lambda _: None, only="gpt-2")


@pytest.mark.parametrize("damaged", ["dense_out", "scores_BU", "chosen"])
def test_a_wrong_result_stops_it(monkeypatch: pytest.MonkeyPatch, damaged: str):
    case = DecodeCase(SMALL, device=DEVICE, dtype=torch.float32)
    sparse = case.sparse

    def damage_at_the_end(call: int) -> None:
        sparse(call)
        tensor = {
            "dense_out": case.dense_out.out_BHD,
            "scores_BU": case.scores_BU,
            "chosen": case.chosen.pages_RK,
        }[damaged]
        tensor[0, 0] += 1

    monkeypatch.setattr(case, "sparse", damage_at_the_end)
    with pytest.raises(InternalError, match="the kernel is wrong on this device"):
        check_decode(case)


def test_a_result_that_is_no_number_is_wrong():
    error = relative_error(torch.tensor([torch.nan]), torch.ones(1))
    with pytest.raises(InternalError, match="nan off float64"):
        require_small("a kernel", error)


def test_bytes_of_the_shapes():
    shape = DECODE_SHAPES["r1-qwen-1.5b 64 x 18432"]
    # 1.2 GB of keys and values a layer: 284 us at 4.26 TB/s, as it was measured once.
    assert shape.kv_bytes(shape.tokens, 2) == 1_207_959_552
    small = DecodeCase(replace(SMALL, tokens=64), device=DEVICE, dtype=torch.float32)
    moved = small.moved_bytes()
    assert moved["dense"] == 64 * 2 * 16 * 4 + 4 * 4
    assert moved["sparse"] == moved["dense"] - 4 * 4


def test_rates_beside_the_ceilings():
    spread = {"median": 100.0, "min": 90.0, "max": 110.0}
    memory = against_memory(spread, moved_bytes=430_000_000)
    assert memory["tb_per_s"] == pytest.approx(4.3)
    assert memory["of_copy"] == pytest.approx(1.0)
    matrix = against_matrix(spread, flops=39_300_000_000)
    assert matrix["tflop_per_s"] == pytest.approx(393.0)
    assert matrix["of_matrix"] == pytest.approx(0.5)


COMPILE = """
import dataclasses, json, torch
from loadtest.micro.kernel_compile import compiling_for
from loadtest.micro.kernel_decode import DecodeCase, DecodeShape
shape = DecodeShape(batch=1, tokens=512, heads=12, kv_heads=2, head_dim=128, layers=1, copies=1)
case = DecodeCase(shape, device=torch.device("cpu"), dtype=torch.bfloat16)
with compiling_for(90) as compiled:
    case.dense_with_dump(0)
    case.select(0)
print(json.dumps([dataclasses.asdict(kernel) for kernel in compiled]))
"""


def without_interpreter(*arguments: str) -> Any:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="Triton has wheels for Linux")
def test_kernels_compile_for_a_gpu_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    compiled = without_interpreter("-c", COMPILE)
    assert [kernel["name"] for kernel in compiled] == [
        "_attend_piece",
        "_merge_head",
        "_select_row",
    ]
    for kernel in compiled:
        assert kernel["spilled_bytes"] == 0
        assert 0 < kernel["registers"] < 255
    assert compiled[0]["shared_bytes"] > 64 * 128 * 2


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(sys.platform != "linux", reason="Triton has wheels for Linux")
def test_every_kernel_compiles_at_every_shape_without_a_spill(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    found = without_interpreter("-m", "loadtest.micro.kernels", "--compile", "90", "--json")
    assert set(DECODE_SHAPES) < set(found)
    names = {kernel["name"] for kernels in found.values() for kernel in kernels}
    assert names == {
        "_attend_piece",
        "_merge_head",
        "_score_tile",
        "_project_tile",
        "_select_row",
        "_row_sums",
        "_key_sums",
        "_attend_block",
    }
    spilled = {
        (shape, kernel["name"]): kernel["spilled_bytes"]
        for shape, kernels in found.items()
        for kernel in kernels
        if kernel["spilled_bytes"]
    }
    assert not spilled
    # What one program may have of an H100 or H200.
    assert all(k["shared_bytes"] <= 232_448 for kernels in found.values() for k in kernels)
