"""The attention probe gives a backend and a reason for each one that it passed over."""

from collections.abc import Callable
from dataclasses import replace
from importlib.machinery import ModuleSpec

import pytest
import torch

from shared.errors import ConfigError
from shared.model.device_attention import DeviceAttention, KernelRange
from shared.model.exact_attention import CudnnKernel, HeadShape
from shared.model.kernel_choice import KernelChoice
from shared.model.plain_attention import PlainKernel
from shared.model.probe import probe_attention

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_cpu_runs_torch() -> None:
    choice = probe_attention(CPU)
    assert choice.backend.name == "torch"
    assert {rejection.name for rejection in choice.rejected} == {
        "triton",
        "flashinfer",
        "flash_attn",
    }
    assert all("needs a CUDA device" in rejection.reason for rejection in choice.rejected)


def test_a_rejected_backend_cannot_be_forced() -> None:
    with pytest.raises(ConfigError, match="'triton' cannot run here: needs a CUDA device"):
        probe_attention(CPU, requested="triton")
    with pytest.raises(ConfigError, match="unknown attention backend 'turbo'"):
        probe_attention(CPU, requested="turbo")
    assert probe_attention(CPU, requested="torch").backend.name == "torch"


def test_reasons_on_a_cuda_device(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"flash_attn": ModuleSpec("flash_attn", None)}
    monkeypatch.setattr("importlib.util.find_spec", found.get)
    reasons = {r.name: r.reason for r in probe_attention(CUDA).rejected}
    assert "not installed" in reasons["triton"]
    assert "no prefill kernel" in reasons["flash_attn"]


SHAPE = HeadShape(num_heads=4, num_kv_heads=2, head_dim=64, dtype=torch.bfloat16, max_tokens=4096)
PLAIN = KernelRange(up_to=None, kernel=PlainKernel())


def chosen(*ranges: KernelRange) -> Callable[[HeadShape, torch.device], KernelChoice]:
    times = {"plain": {1024: 1.0}}
    rejected = {"cudnn": "RuntimeError: no plan"}
    return lambda _shape, _device: KernelChoice(ranges=ranges, seconds=times, rejected=rejected)


def never(_shape: HeadShape, _device: torch.device) -> KernelChoice:
    raise AssertionError("nothing is measured here")


@pytest.fixture
def _triton_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"triton": ModuleSpec("triton", None)}
    monkeypatch.setattr("importlib.util.find_spec", found.get)


@pytest.mark.usefixtures("_triton_installed")
@pytest.mark.parametrize("requested", ["auto", "triton"])
def test_a_cuda_device_measures_the_shape(requested: str) -> None:
    choice = probe_attention(CUDA, requested=requested, shape=SHAPE, choose=chosen(PLAIN))
    assert isinstance(choice.backend, DeviceAttention)
    assert choice.backend.name == "plain"
    assert choice.seconds == {"plain": {1024: 1.0}}
    assert choice.blocks == "torch"
    reasons = {r.name: r.reason for r in choice.rejected}
    assert reasons == {
        "cudnn": "RuntimeError: no plan",
        "torch": "the reference, without kernels of ours",
    }


@pytest.mark.usefixtures("_triton_installed")
def test_blocks_go_to_the_kernel_that_was_chosen_for_them() -> None:
    def choose(_shape: HeadShape, _device: torch.device) -> KernelChoice:
        whole = KernelRange(up_to=None, kernel=CudnnKernel())
        return KernelChoice(ranges=(whole,), seconds={}, rejected={}, blocks=PlainKernel())

    choice = probe_attention(CUDA, shape=SHAPE, choose=choose)
    assert (choice.backend.name, choice.blocks) == ("cudnn", "plain")
    q = torch.ones(3, 2, 16)
    k = torch.ones(8, 1, 16)
    torch.testing.assert_close(choice.backend.causal(q, k, k), torch.ones(3, 2, 16))


@pytest.mark.usefixtures("_triton_installed")
def test_a_device_on_which_no_kernel_works() -> None:
    choice = probe_attention(CUDA, shape=SHAPE, choose=chosen())
    assert choice.backend.name == "torch"
    assert [r.name for r in choice.rejected] == ["triton", "cudnn"]
    with pytest.raises(ConfigError, match=r"no exact .* works here \(cudnn: RuntimeError: no plan"):
        probe_attention(CUDA, requested="triton", shape=SHAPE, choose=chosen())


@pytest.mark.usefixtures("_triton_installed")
@pytest.mark.parametrize(
    ("shape", "device", "reason"),
    [
        (replace(SHAPE, dtype=torch.float32), CUDA, "16-bit types, and the model is torch.float32"),
        (replace(SHAPE, head_dim=80), CUDA, "head size 80 is not one of 16, 32, 64"),
        (SHAPE, CPU, "needs a CUDA device"),
    ],
    ids=["float32", "head size", "cpu"],
)
def test_models_that_the_kernels_do_not_take(
    shape: HeadShape, device: torch.device, reason: str
) -> None:
    choice = probe_attention(device, shape=shape, choose=never)
    assert choice.backend.name == "torch"
    reasons = {r.name: r.reason for r in choice.rejected}
    assert set(reasons) == {"triton", "flashinfer", "flash_attn"}
    assert reason in reasons["triton"]
    with pytest.raises(ConfigError, match="'triton' cannot run here"):
        probe_attention(device, requested="triton", shape=shape, choose=never)
    assert probe_attention(device, requested="torch", shape=shape, choose=never).rejected
    with pytest.raises(ConfigError, match="unknown attention backend 'turbo'"):
        probe_attention(device, requested="turbo", shape=shape, choose=never)
