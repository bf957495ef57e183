"""The window scorer against materialised probabilities."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from prefill_service.ranking.window_attention import window_scores


def plain(q_WHD: Tensor, k_LGD: Tensor, *, kernel: int) -> Tensor:
    """Every probability materialised, pooled per query head."""
    window, heads, dim = q_WHD.shape
    length, groups, _ = k_LGD.shape
    share = heads // groups
    logits = torch.einsum("whd,lhd->hwl", q_WHD, k_LGD.repeat_interleave(share, dim=1))
    logits = logits / math.sqrt(dim)
    rows = torch.arange(length - window, length)
    future = torch.arange(length)[None] > rows[:, None]
    mass_HC = logits.masked_fill(future, -math.inf).softmax(-1).sum(1)[:, : length - window]
    pooled = functional.avg_pool1d(mass_HC, kernel, stride=1, padding=kernel // 2)
    return pooled.view(groups, share, -1).sum(1)


@pytest.mark.parametrize("block", [1, 5, 13, 64, 4096])
@pytest.mark.parametrize(
    ("length", "window", "heads", "groups"),
    [(64, 8, 4, 2), (9, 8, 3, 3), (33, 1, 6, 1), (20, 19, 2, 2), (100, 16, 9, 3)],
)
def test_equals_materialised(length: int, window: int, heads: int, groups: int, block: int) -> None:
    generator = torch.Generator().manual_seed(length)
    q = torch.randn((window, heads, 16), generator=generator)
    k = torch.randn((length, groups, 16), generator=generator)
    ours = window_scores(q, k, pool_kernel=7, key_block=block)
    assert ours.dtype is torch.float32
    torch.testing.assert_close(ours, plain(q, k, kernel=7), atol=1e-6, rtol=1e-5)


def test_window_columns_are_dropped_after_the_softmax() -> None:
    q = torch.ones((2, 1, 4)) * 3.0
    k = torch.zeros((10, 1, 4))
    k[-1] = 3.0
    scores = window_scores(q, k, pool_kernel=1)
    # Row 8 sees nine equal keys; row 9 spends nearly everything on its own key, a window column.
    assert scores.shape == (1, 8)
    torch.testing.assert_close(scores, torch.full((1, 8), 1 / 9), atol=1e-6, rtol=1e-6)


def test_padding_counts_in_the_divisor() -> None:
    q, k = torch.zeros((1, 1, 4)), torch.zeros((21, 1, 4))
    scores = window_scores(q, k, pool_kernel=7)[0] * 21 * 7
    assert scores.round().tolist() == [4, 5, 6] + [7] * 14 + [6, 5, 4]


def test_no_candidates() -> None:
    scores = window_scores(torch.zeros((3, 2, 4)), torch.zeros((3, 1, 4)), pool_kernel=7)
    assert scores.shape == (1, 0)


def test_extreme_logits_stay_finite() -> None:
    q, k = torch.full((2, 1, 4), 1e3), torch.zeros((9, 1, 4))
    k[3] = 1e3
    scores = window_scores(q, k, pool_kernel=1)
    assert torch.isfinite(scores).all()
    assert scores[0].argmax() == 3


def test_bfloat16_is_scored_in_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn((4, 4, 16), generator=generator).bfloat16()
    k = torch.randn((50, 2, 16), generator=generator).bfloat16()
    ours = window_scores(q, k, pool_kernel=7)
    assert torch.equal(ours, window_scores(q.float(), k.float(), pool_kernel=7))
