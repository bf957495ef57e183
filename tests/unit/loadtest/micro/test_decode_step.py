"""The bench of whole decode steps: what it says without a GPU, and that a wrong step stops it."""

import pytest
import torch
import triton

from decode_service.engine.backends import HEAD_SIZES, MOST_TOKENS
from loadtest.micro import decode_step, step_parity
from loadtest.micro.models import random_on_device
from loadtest.micro.step_cases import case_of, named_cases
from loadtest.micro.step_parity import Float32Twin, StepCheck, make_runners
from loadtest.micro.step_rows import ARMS, GROWTH, CaseRows
from loadtest.micro.step_shapes import CASES, TINY
from loadtest.micro.step_times import _longest, _part_of, against_bytes
from shared.errors import ConfigError, InternalError
from shared.kv.geometry import PAGE_SIZE
from shared.model.shapes import MODEL_SHAPES
from tests.support.kernel_rows import DEVICE

on_cpu = pytest.mark.skipif(DEVICE.type == "cuda", reason="a GPU times whole models")


@pytest.fixture(scope="module")
def tiny():
    model = random_on_device(TINY.config, device=torch.device("cpu"), dtype=torch.float32)
    return model, CaseRows(model, TINY)


@on_cpu
def test_without_a_gpu_it_compares_and_gives_no_time():
    lines: list[str] = []
    result = decode_step.bench_steps(device=DEVICE, only="18432", repeats=1, progress=lines.append)
    assert set(result["tiny"]) == {"float32"}
    assert set(result["tiny"]["float32"]) == set(ARMS)
    assert all(errors["torch"] < 1e-4 for errors in result["tiny"]["float32"].values())
    assert result["cases"] == {}
    assert "interpreter" in result["device"]
    assert lines[0].startswith("tiny model in float32: errors")


@on_cpu
def test_what_cannot_run_is_refused(monkeypatch):
    with pytest.raises(ConfigError, match="no case has 'gpt'"):
        decode_step.bench_steps(device=DEVICE, only="gpt", repeats=1, progress=print)
    with pytest.raises(ConfigError, match="0 repeats"):
        decode_step.bench_steps(device=DEVICE, only="", repeats=0, progress=print)
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    with pytest.raises(ConfigError, match="TRITON_INTERPRET=1"):
        decode_step.bench_steps(device=DEVICE, only="", repeats=1, progress=print)


@on_cpu
def test_a_wrong_step_stops_it(tiny, monkeypatch):
    monkeypatch.setattr(step_parity, "LIMIT", 0.0)
    model, held = tiny
    check = StepCheck(model, held, TINY, checked_rows=1, exact=None)
    with pytest.raises(InternalError, match="dense: logits are off"):
        check.run(steps=1)


@on_cpu
def test_a_near_tie_may_fall_the_other_way_and_no_more(tiny, monkeypatch):
    monkeypatch.setattr(step_parity, "LIMIT", 0.0)
    model, held = tiny
    check = StepCheck(model, held, TINY, checked_rows=1, exact=None)
    monkeypatch.setattr(held, "arms", lambda: ("delta",))
    assert check.run(steps=1) == {"delta": {"torch": 0.0, "near_ties": 1}}
    with pytest.raises(InternalError, match="in 2 of 2 row steps"):
        check.run(steps=2)


def test_the_float32_twin_is_the_same_model_over_the_same_pages(tiny):
    model, held = tiny
    twin, (by_row, _) = Float32Twin(model, held, rows=2), make_runners(model, held.cache, TINY)
    for arm in ("dense", "pair"):
        rows = held.rows(arm)
        for _ in range(2):
            computed = by_row.forward(rows)
            assert torch.equal(twin.logits(rows), computed.logits_BV)
            computed.accept(computed.logits_BV.argmax(dim=-1).tolist())


def test_arms_share_pages_and_differ_in_what_they_hold(tiny):
    _, held = tiny
    dense, pair = held.rows("dense"), held.rows("pair")
    assert dense[1].prompt.pages.front.pages == pair[1].prompt.pages.front.pages
    kept = pair[1].prompt.pages.rest.pages
    assert kept == dense[1].prompt.pages.rest.pages[: len(kept)]
    assert [row.prompt.layer_layouts for row in pair] == [(0, 0, 1, 1, 1, 1)] * 2
    taken = [page for row in dense for page in row.prompt.pages.rest.pages]
    assert len(set(taken)) == len(taken)


def test_the_sizes_are_those_of_the_issue():
    sizes = {(case.batch, case.context, case.keep_rate) for case in CASES.values()}
    assert sizes == {(64, 18_432, None), (64, 4096, None), (16, 32_768, 0.2), (1, 32_768, 0.2)}


@pytest.mark.parametrize("shape", list(MODEL_SHAPES))
def test_every_shape_is_a_case_that_the_kernels_serve(shape: str):
    case = case_of(shape)
    assert case.config.head_dim in HEAD_SIZES
    assert case.context + GROWTH <= min(case.config.max_position, MOST_TOKENS)
    assert case.full_layers[:3] == (0, 1, 2)
    assert max(case.full_layers) < case.config.num_layers
    assert 0 < case.recency < case.budget < case.context // PAGE_SIZE
    assert case.whole_layers >= 3, "the first choice is made where nothing is pruned"


def test_cases_of_shapes_have_names_that_say_their_size():
    assert named_cases("") is CASES
    assert list(named_cases("smollm2-135m, r1-qwen-7b", batch=8)) == [
        "smollm2-135m 8 x 7168",
        "r1-qwen-7b 8 x 16384",
    ]
    assert [case.context for case in named_cases("r1-qwen-1.5b", contexts="4,9").values()] == [4, 9]
    for sizes in ({"batch": 8}, {"contexts": "4096"}):
        with pytest.raises(ConfigError, match="name a shape"):
            named_cases("", **sizes)
    with pytest.raises(ConfigError, match="name a shape"):
        named_cases(" , ")
    with pytest.raises(ConfigError, match="'4k' is no context"):
        named_cases("r1-qwen-1.5b", contexts="4k")
    with pytest.raises(ConfigError, match="no model shape 'gpt-2'"):
        named_cases("gpt-2")
    with pytest.raises(ConfigError, match="at least one row"):
        named_cases("llama-3.1-8b", batch=0)
    with pytest.raises(ConfigError, match="1 to 7168 tokens"):
        case_of("smollm2-135m", context=8000)
    with pytest.raises(ConfigError, match="keep rate of 1"):
        case_of("smollm2-135m", keep_rate=1.0)


def test_kernels_belong_to_parts():
    parts = {
        "_attend_piece": "attention",
        "_score_tile": "selection",
        "nvjet_sm90_tst_64x64": "products",
        "void cublasLt::splitKreduce_kernel<32>": "products",
        "_rotate_head": "rest",
    }
    assert {name: _part_of(name) for name in parts} == parts
    found = _longest([("a", 1.0), ("b", 5.0), ("a", 2.0), ("b", 1.0)], 2)
    assert found == [
        {"name": "b", "ms": 3.0, "launches": 1.0},
        {"name": "a", "ms": 1.5, "launches": 1.0},
    ]


def test_bytes_over_time():
    against = against_bytes(2.0, kv_bytes=6_000_000_000, weight_bytes=2_000_000_000)
    assert against["tb_per_s"] == pytest.approx(4.0)
    assert against["of_copy"] == pytest.approx(4.0 / 4.3)
