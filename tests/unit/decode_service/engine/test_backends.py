"""Which way of computing a step is chosen, and what is said of the others."""

import dataclasses

import pytest
import torch

from decode_service.engine.backends import DecodeBackend, make_runner, probe_decode
from decode_service.engine.batched.runner import BatchRunner
from decode_service.engine.runner import DecodeRunner
from decode_service.kernels import paged_attention, select_pages
from shared.errors import ConfigError
from shared.kv.geometry import PAGE_SIZE
from shared.model.rope_config import RopeConfig, RopeKind
from tests.support.decode_rows import make_cache


@dataclasses.dataclass
class OnGpu:
    """A model as the probe sees it, on a device that need not be there."""

    config: object
    device: torch.device = dataclasses.field(default_factory=lambda: torch.device("cuda"))


def on_gpu(model, **changes):
    return OnGpu(dataclasses.replace(model.config, **changes))


def test_the_cpu_takes_torch_and_says_why(tiny_model):
    backend = probe_decode(tiny_model, max_tokens=1024)
    assert backend.name == "torch"
    assert backend.log_facts()["attention_serves"] == "all rows"
    assert backend.rejections[0] == "triton: needs a CUDA device, and the model is on cpu"
    assert [each.name for each in backend.rejected] == ["triton", "flashinfer", "flash_attn"]


def test_a_gpu_takes_triton(tiny_model):
    backend = probe_decode(on_gpu(tiny_model), max_tokens=1024)
    assert backend.name == "triton"
    assert "by torch" in backend.log_facts()["attention_serves"]
    assert [each.name for each in backend.rejected] == ["flashinfer", "flash_attn"]


def test_torch_may_be_asked_for(tiny_model):
    backend = probe_decode(on_gpu(tiny_model), max_tokens=1024, requested="torch")
    assert backend.name == "torch"
    assert backend.rejections[0] == "triton: torch was asked for"


@pytest.mark.parametrize(
    ("changes", "max_tokens", "reason"),
    [
        ({"head_dim": 80}, 1024, "head size 80"),
        (
            {"rope": RopeConfig(kind=RopeKind.DYNAMIC, factor=2.0, original_max_position=64)},
            1024,
            "dynamic rotary",
        ),
        ({}, 300_000, "set max_model_len"),
    ],
)
def test_what_the_kernels_cannot_do_goes_to_torch(tiny_model, changes, max_tokens, reason):
    model = on_gpu(tiny_model, **changes)
    backend = probe_decode(model, max_tokens=max_tokens)
    assert backend.name == "torch"
    assert reason in backend.rejections[0]
    with pytest.raises(ConfigError, match=reason):
        probe_decode(model, max_tokens=max_tokens, requested="triton")


@pytest.mark.parametrize(
    ("requested", "said"),
    [("triton", "needs a CUDA device"), ("flashinfer", "not|yet"), ("sdpa", "unknown: choose")],
)
def test_what_cannot_be_had_is_refused(tiny_model, requested, said):
    with pytest.raises(ConfigError, match=said):
        probe_decode(tiny_model, max_tokens=1024, requested=requested)


def test_the_probes_limits_are_the_kernels():
    from decode_service.engine import backends

    assert backends.HEAD_SIZES == paged_attention.HEAD_DIMS
    assert backends.MOST_TOKENS == select_pages.MOST_PAGES * PAGE_SIZE


@pytest.mark.parametrize(("name", "kind"), [("torch", DecodeRunner), ("triton", BatchRunner)])
def test_a_backend_makes_its_runner(tiny_model, name, kind):
    cache = make_cache(tiny_model)
    backend = DecodeBackend(name=name, rejected=())
    made = make_runner(backend, tiny_model, cache, max_batch=2, max_tokens=64)
    assert isinstance(made, kind)
