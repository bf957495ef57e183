"""The adapters of optional packages: shapes, units, masks, and what is said of one that fails."""

import pytest
import torch

from shared.errors import ConfigError
from shared.model.library_attention import (
    FlashAttn2Kernel,
    FlashAttn4Kernel,
    FlashInferKernel,
    why_missing,
)
from shared.model.plain_attention import plain_attention
from tests.support import attention_libraries as libraries

KERNELS = (FlashAttn4Kernel(), FlashAttn2Kernel(), FlashInferKernel())


@pytest.fixture
def _installed(monkeypatch):
    libraries.install(
        monkeypatch,
        flash_attn={},
        flash_attn__cute={"flash_attn_func": libraries.flash_attn_4},
        flash_attn__flash_attn_interface={"flash_attn_func": libraries.flash_attn_2},
        flashinfer={"single_prefill_with_kv_cache": libraries.single_prefill_with_kv_cache},
    )


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize(("tokens", "keys"), [(40, 40), (7, 40), (1, 1)])
def test_an_adapter_gives_rows_of_heads_and_natural_logarithms(kernel, tokens, keys):
    generator = torch.Generator().manual_seed(keys)
    q = torch.randn((tokens, 6, 64), generator=generator)
    k, v = (torch.randn((keys, 2, 64), generator=generator) for _ in range(2))
    assert kernel.missing is None
    assert kernel.padded(tokens) == tokens
    wanted_THD, wanted_TH = plain_attention(q, k, v)
    out_THD, lse_TH = kernel.attend(q, k, v, want_lse=True)
    torch.testing.assert_close(out_THD, wanted_THD)
    torch.testing.assert_close(lse_TH, wanted_TH)
    out_THD, lse_TH = kernel.attend(q, k, v, want_lse=False)
    torch.testing.assert_close(out_THD, wanted_THD)
    assert lse_TH is None


@pytest.mark.usefixtures("_installed")
def test_flashinfer_is_not_asked_to_compile_what_it_has_no_kernel_for():
    x_THD = torch.zeros(4, 2, 80)
    with pytest.raises(ConfigError, match="head size 80 is none of FlashInfer's"):
        FlashInferKernel().attend(x_THD, x_THD, x_THD, want_lse=True)


def test_the_two_flash_attn_packages_are_told_apart(monkeypatch):
    libraries.install(monkeypatch, flash_attn={}, flash_attn__cute={})
    assert FlashAttn4Kernel().missing is None
    assert FlashAttn2Kernel().missing == "package flash-attn is not installed"


def test_a_package_of_another_build_is_named_and_stops_nothing(monkeypatch, tmp_path):
    broken = tmp_path / "torn_package"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('torn.so: undefined symbol: at_x')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert why_missing("torn_package.inner", "torn") == (
        "package torn cannot be imported: torn.so: undefined symbol: at_x"
    )
    assert why_missing("torn_package", "torn") is None, "seen only when it is called"
