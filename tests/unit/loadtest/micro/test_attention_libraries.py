"""The bench of the libraries' attention, as far as no GPU is needed."""

import json

import pytest
import torch

from loadtest.micro import attention_libraries, attention_prompts, attention_steps
from loadtest.micro.models import random_on_device
from loadtest.micro.step_parity import Float32Twin
from loadtest.micro.step_rows import CaseRows
from loadtest.micro.step_shapes import CASES, TINY
from shared.errors import ConfigError, InternalError
from shared.model.kernel_choice import choose_kernels
from shared.model.plain_attention import PlainKernel
from tests.support import attention_libraries as libraries
from tests.support.kernel_rows import DEVICE

CPU = torch.device("cpu")


def test_without_a_gpu_nothing_is_measured(capsys):
    with pytest.raises(ConfigError, match="on a GPU only"):
        attention_libraries.bench(device=CPU, tokens=(100,), progress=print)
    with pytest.raises(SystemExit):
        attention_libraries.main(["--device", "cpu"])
    assert "on a GPU only" in capsys.readouterr().err


def test_parts_are_checked():
    with pytest.raises(ConfigError, match="choose of prefill, decode, steps"):
        attention_libraries.bench(
            device=torch.device("cuda"), tokens=(), parts=("decoding",), progress=print
        )


def test_what_was_not_asked_for_is_not_in_the_result_and_what_is_missing_says_so(
    monkeypatch, capsys
):
    monkeypatch.setattr(attention_libraries, "gpu_facts", lambda *_: {"device": "a GPU"})
    attention_libraries.main(["--parts", "steps"])
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] == {"rejected": "package flashinfer-python is not installed"}
    assert not {"prefill", "decode"} & set(found)


def test_steps_are_of_a_case_that_exists():
    assert attention_libraries.STEP_CASE in CASES


def test_prompts_and_blocks_are_counted_by_the_pairs_they_see(monkeypatch):
    class Clock:
        def __init__(self, *, enable_timing):
            assert enable_timing

        def record(self): ...

        def synchronize(self): ...

        def elapsed_time(self, _other):
            return 2.0

    monkeypatch.setattr(torch.cuda, "Event", Clock)
    heads = attention_prompts.HEADS
    small = type(heads)(
        num_heads=2, num_kv_heads=1, head_dim=16, dtype=torch.float32, max_tokens=64
    )
    kernels = (PlainKernel(),)
    monkeypatch.setattr(attention_prompts, "HEADS", small)
    monkeypatch.setattr(attention_prompts, "BLOCK", 4)
    monkeypatch.setattr(attention_prompts, "EXACT_KERNELS", kernels)
    monkeypatch.setattr(
        attention_prompts,
        "choose_kernels",
        lambda shape, device: choose_kernels(shape, device, kernels=kernels, timer=lambda _: 1.0),
    )
    found = attention_prompts.time_prompts(CPU, tokens=(10,), progress=lambda _: None)
    whole, block = found["whole"]["10"]["plain"], found["blocks"]["10"]["plain"]
    assert whole["us"]["median"] == 2000
    assert whole["flops"] == 4 * 2 * 16 * 55
    assert block["flops"] == 4 * 2 * 16 * (7 + 8 + 9 + 10)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="the stand-in computes on a CPU")
@pytest.mark.parametrize("wrong", [False, True])
def test_steps_are_compared_before_they_are_timed(monkeypatch, wrong):
    class Library(libraries.BatchDecodeWithPagedKVCacheWrapper):
        def run(self, q, paged_kv_cache, *, out):
            super().run(q, paged_kv_cache, out=out)
            return out.mul_(3) if wrong else out

    libraries.install(monkeypatch, flashinfer={"BatchDecodeWithPagedKVCacheWrapper": Library})
    model = random_on_device(TINY.config, device=CPU, dtype=torch.float32)
    held = CaseRows(model, TINY)
    runners = attention_steps.make_both(model, held, TINY)
    exact = Float32Twin(model, held, rows=1)
    if wrong:
        with pytest.raises(InternalError, match="FlashInfer is wrong on this device"):
            attention_steps.compare(held, runners, exact=exact, steps=1)
        return
    off = attention_steps.compare(held, runners, exact=exact, steps=1)
    assert set(off) == set(held.arms())
    assert max(error for by_backend in off.values() for error in by_backend.values()) < 1e-4
