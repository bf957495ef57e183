"""The attention probe gives a backend and a reason for each one that it passed over."""

from importlib.machinery import ModuleSpec

import pytest
import torch

from shared.errors import ConfigError
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
