"""The comparison that FlashInfer must pass before it serves, with a stand-in on the CPU."""

import dataclasses

import pytest
import torch

from decode_service.engine.flashinfer_check import flashinfer_fault
from shared.model.config import ModelConfig
from tests.support import attention_libraries as libraries


@dataclasses.dataclass
class Model:
    """What the check asks of a model."""

    config: ModelConfig
    dtype: torch.dtype = torch.bfloat16
    device: torch.device = dataclasses.field(default_factory=lambda: torch.device("cpu"))


def install(monkeypatch, wrapper: type) -> None:
    libraries.install(monkeypatch, flashinfer={"BatchDecodeWithPagedKVCacheWrapper": wrapper})


def test_right_results_pass(monkeypatch, tiny_model):
    install(monkeypatch, libraries.BatchDecodeWithPagedKVCacheWrapper)
    assert flashinfer_fault(Model(tiny_model.config)) == ""


@pytest.mark.parametrize("row", [0, 1, 4])
@pytest.mark.parametrize("change", [0.5, torch.nan])
def test_one_wrong_row_is_found(monkeypatch, tiny_model, row, change):
    class Wrong(libraries.BatchDecodeWithPagedKVCacheWrapper):
        def run(self, q, paged_kv_cache, *, out):
            super().run(q, paged_kv_cache, out=out)
            out[row] += change
            return out

    install(monkeypatch, Wrong)
    assert flashinfer_fault(Model(tiny_model.config)).startswith("its output is")


def test_a_library_that_fails_says_why(monkeypatch, tiny_model):
    class NoCompilerError(Exception):
        """As a library may end in."""

    class Failing(libraries.BatchDecodeWithPagedKVCacheWrapper):
        def plan(self, *_args, **_types):
            raise NoCompilerError("Could not find nvcc\nin CUDA_HOME")

    install(monkeypatch, Failing)
    assert flashinfer_fault(Model(tiny_model.config)) == "NoCompilerError: Could not find nvcc"
