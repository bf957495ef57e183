"""Window scoring by a fused kernel against its slow twin and the function that serves today."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from prefill_service.kernels.window_mass import window_mass, window_mass_scores
from prefill_service.ranking.window_attention import window_scores
from shared.errors import ConfigError
from tests.support.kernel_rows import DEVICE
from tests.unit.prefill_service.kernels.slow_window_mass import slow_logits, slow_window_mass


def prompt(
    length: int, *, window: int, kv_heads: int, group: int, head_dim: int = 16
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(length)
    q_WHD = torch.randn((window, kv_heads * group, head_dim), generator=generator)
    k_LGD = torch.randn((length, kv_heads, head_dim), generator=generator)
    return q_WHD.to(DEVICE), k_LGD.to(DEVICE)


def mass_of(q_WHD: Tensor, k_LGD: Tensor, *, lse_WH: Tensor | None = None) -> Tensor:
    candidates = k_LGD.shape[0] - q_WHD.shape[0]
    mass_GC = torch.full((k_LGD.shape[1], candidates), torch.nan, device=DEVICE)
    window_mass(q_WHD, k_LGD, mass_GC=mass_GC, lse_WH=lse_WH)
    return mass_GC.double()


@pytest.mark.parametrize(
    ("length", "window", "kv_heads", "group", "head_dim"),
    [
        pytest.param(9, 8, 3, 1, 64, id="one candidate"),
        pytest.param(64, 8, 1, 3, 64, id="one block"),
        pytest.param(65, 1, 2, 8, 128, id="a window of one"),
        pytest.param(129, 8, 1, 7, 256, id="56 rows"),
        pytest.param(200, 19, 2, 4, 64, id="76 rows over four blocks"),
    ],
)
def test_equals_the_slow_twin(length, window, kv_heads, group, head_dim):
    q_WHD, k_LGD = prompt(length, window=window, kv_heads=kv_heads, group=group, head_dim=head_dim)
    wanted = slow_window_mass(q_WHD, k_LGD)
    torch.testing.assert_close(mass_of(q_WHD, k_LGD), wanted, atol=1e-5, rtol=1e-4)


def test_the_log_sum_exp_of_the_attention_before_is_taken():
    q_WHD, k_LGD = prompt(100, window=8, kv_heads=2, group=3)
    lse_WH = slow_logits(q_WHD, k_LGD).logsumexp(-1).t()
    given_lse = mass_of(q_WHD, k_LGD, lse_WH=lse_WH.float())
    torch.testing.assert_close(given_lse, mass_of(q_WHD, k_LGD), atol=1e-6, rtol=1e-5)
    halved = mass_of(q_WHD, k_LGD, lse_WH=(lse_WH + torch.log(torch.tensor(2.0))).float())
    torch.testing.assert_close(halved * 2, given_lse, atol=1e-6, rtol=1e-5)


@settings(max_examples=10, deadline=None)
@given(
    candidates=st.integers(0, 150),
    window=st.integers(1, 9),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 8),
    pool_kernel=st.sampled_from([1, 3, 7, 13]),
)
def test_equals_the_scores_that_serve(candidates, window, kv_heads, group, pool_kernel):
    q_WHD, k_LGD = prompt(candidates + window, window=window, kv_heads=kv_heads, group=group)
    ours = window_mass_scores(q_WHD, k_LGD, pool_kernel=pool_kernel)
    served = window_scores(q_WHD, k_LGD, pool_kernel=pool_kernel)
    assert ours.dtype is torch.float32
    torch.testing.assert_close(ours, served, atol=1e-5, rtol=1e-4)


def test_views_of_a_larger_tensor():
    q_WHD, k_LGD = prompt(80, window=8, kv_heads=2, group=2)
    wide_LGD = torch.cat((k_LGD, torch.full_like(k_LGD, torch.nan)), dim=1)[:, :2]
    assert torch.equal(mass_of(q_WHD, wide_LGD), mass_of(q_WHD, k_LGD))


def test_float16():
    q_WHD, k_LGD = (x.half() for x in prompt(90, window=8, kv_heads=1, group=4))
    wanted = slow_window_mass(q_WHD, k_LGD)
    torch.testing.assert_close(mass_of(q_WHD, k_LGD), wanted, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize(("window", "head_dim"), [(300, 16), (8, 80)])
def test_what_the_kernel_was_not_written_for_is_refused(window, head_dim):
    q_WHD, k_LGD = prompt(window + 1, window=window, kv_heads=1, group=1, head_dim=head_dim)
    with pytest.raises(ConfigError, match="window scoring on Triton"):
        mass_of(q_WHD, k_LGD)
