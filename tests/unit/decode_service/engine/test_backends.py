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
from tests.support import attention_libraries as libraries
from tests.support.decode_rows import make_cache


@dataclasses.dataclass
class OnGpu:
    """A model as the probe sees it, on a device that need not be there."""

    config: object
    device: torch.device = dataclasses.field(default_factory=lambda: torch.device("cuda"))
    dtype: torch.dtype = torch.bfloat16


def never(_model: object) -> str:
    pytest.fail("it is compared only where it was asked for")


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
    [
        ("triton", "needs a CUDA device"),
        ("flashinfer", "needs a CUDA device"),
        ("flash_attn", "slower than ours"),
        ("sdpa", "unknown: choose"),
    ],
)
def test_what_cannot_be_had_is_refused(tiny_model, requested, said):
    with pytest.raises(ConfigError, match=said):
        probe_decode(tiny_model, max_tokens=1024, requested=requested)


def test_flashinfer_is_named_where_it_is_not_installed(tiny_model):
    reason = "package flashinfer-python is not installed (extra flashinfer)"
    backend = probe_decode(on_gpu(tiny_model), max_tokens=1024)
    assert f"flashinfer: {reason}" in backend.rejections
    with pytest.raises(ConfigError, match="package flashinfer-python is not installed"):
        probe_decode(on_gpu(tiny_model), max_tokens=1024, requested="flashinfer")


@pytest.fixture
def _installed(monkeypatch):
    wrapper = libraries.BatchDecodeWithPagedKVCacheWrapper
    libraries.install(monkeypatch, flashinfer={"BatchDecodeWithPagedKVCacheWrapper": wrapper})


@pytest.mark.usefixtures("_installed")
def test_flashinfer_serves_only_when_it_is_asked_for(tiny_model):
    model = on_gpu(tiny_model, head_dim=64)
    backend = probe_decode(model, max_tokens=1024, compare=never)
    assert backend.name == "triton"
    assert "flashinfer: slower than triton where both were measured; ask for it by name" in (
        backend.rejections
    )
    backend = probe_decode(model, max_tokens=1024, requested="flashinfer", compare=lambda _: "")
    assert backend.name == "flashinfer"
    assert backend.rejections[0] == "triton: flashinfer was asked for"
    assert [each.name for each in backend.rejected] == ["triton", "flash_attn"]
    assert "by triton" in backend.log_facts()["attention_serves"]


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize(
    ("changes", "dtype", "reason"),
    [
        ({"head_dim": 16}, torch.bfloat16, "head size 16 is none of 64, 128, 256"),
        ({"head_dim": 64}, torch.float32, "16-bit types, and the model is torch.float32"),
        ({"head_dim": 80}, torch.bfloat16, "head size 80 is none of 16"),
    ],
)
def test_what_flashinfer_cannot_do_is_refused(tiny_model, changes, dtype, reason):
    model = on_gpu(tiny_model, **changes)
    model.dtype = dtype
    with pytest.raises(ConfigError, match=reason):
        probe_decode(model, max_tokens=1024, requested="flashinfer", compare=lambda _: "")


@pytest.mark.usefixtures("_installed")
def test_wrong_results_of_flashinfer_are_refused(tiny_model):
    model = on_gpu(tiny_model, head_dim=64)
    with pytest.raises(ConfigError, match=r"cannot run here: its output is 0\.3 off"):
        probe_decode(
            model,
            max_tokens=1024,
            requested="flashinfer",
            compare=lambda _: "its output is 0.3 off float32, 0.01 is allowed",
        )


def test_the_probes_limits_are_the_kernels():
    from decode_service.engine import backends

    assert backends.HEAD_SIZES == paged_attention.HEAD_DIMS
    assert backends.MOST_TOKENS == select_pages.MOST_PAGES * PAGE_SIZE


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize(
    ("name", "kind"),
    [("torch", DecodeRunner), ("triton", BatchRunner), ("flashinfer", BatchRunner)],
)
def test_a_backend_makes_its_runner(tiny_model, name, kind):
    cache = make_cache(tiny_model)
    backend = DecodeBackend(name=name, rejected=())
    made = make_runner(backend, tiny_model, cache, max_batch=2, max_tokens=64)
    assert isinstance(made, kind)


def test_kernels_of_products_go_with_kernels_of_steps(tiny_model):
    cache, backend = make_cache(tiny_model), probe_decode(tiny_model, max_tokens=64)
    with pytest.raises(ConfigError, match="'torch' computes steps"):
        make_runner(backend, tiny_model, cache, max_batch=2, max_tokens=64, products="triton")


def test_a_runner_says_what_its_products_are_computed_by(tiny_model):
    backend = DecodeBackend(name="triton", rejected=())
    made = make_runner(backend, tiny_model, make_cache(tiny_model), max_batch=2, max_tokens=64)
    assert made.facts == {"products": {}}, "no step was made yet"
    by_row = make_runner(
        probe_decode(tiny_model, max_tokens=64),
        tiny_model,
        make_cache(tiny_model),
        max_batch=2,
        max_tokens=64,
    )
    assert by_row.facts == {}
