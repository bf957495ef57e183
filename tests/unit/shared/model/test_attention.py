"""Prefill attention against plain softmax, chunked and at chosen positions."""

import math

import pytest
import torch
from torch import Tensor

from shared.model.attention import TorchAttention

ATTENTION = TorchAttention()


def slow(q_THD: Tensor, k_SGD: Tensor, v_SGD: Tensor, positions_T: Tensor) -> Tensor:
    """One query and head at a time, float64."""
    group = q_THD.shape[1] // k_SGD.shape[1]
    out = torch.empty(q_THD.shape, dtype=torch.float64)
    for t, position in enumerate(positions_T.tolist()):
        for head in range(q_THD.shape[1]):
            keys = k_SGD[: position + 1, head // group].double()
            weights = (keys @ q_THD[t, head].double() / math.sqrt(q_THD.shape[2])).softmax(0)
            out[t, head] = weights @ v_SGD[: position + 1, head // group].double()
    return out


def qkv(
    tokens: int, keys: int, *, heads: int = 6, kv_heads: int = 2, size: int = 16
) -> list[Tensor]:
    shapes = ((tokens, heads, size), (keys, kv_heads, size), (keys, kv_heads, size))
    return [2.0 * torch.randn(shape) for shape in shapes]


@pytest.mark.parametrize(("tokens", "keys"), [(1, 1), (33, 33), (1, 40), (17, 50), (64, 300)])
def test_causal_is_bottom_right(tokens: int, keys: int) -> None:
    q, k, v = qkv(tokens, keys)
    expected = slow(q, k, v, torch.arange(keys - tokens, keys))
    assert (ATTENTION.causal(q, k, v) - expected).abs().max() < 1e-5


@pytest.mark.parametrize("positions", [[0], [0, 1, 2], [3, 4, 9, 31, 59], [59], list(range(60))])
def test_queries_at_positions(positions: list[int]) -> None:
    q, k, v = qkv(len(positions), 60)
    at = torch.tensor(positions)
    got = ATTENTION.at_positions(q, k, v, positions_T=at)
    assert (got - slow(q, k, v, at)).abs().max() < 1e-5


def test_more_queries_than_a_block() -> None:
    q, k, v = qkv(700, 1500, heads=2, kv_heads=1)
    at = torch.randperm(1500)[:700].sort().values
    got = ATTENTION.at_positions(q, k, v, positions_T=at)
    rows = torch.tensor([0, 255, 256, 400, 511, 512, 699])
    assert (got[rows] - slow(q[rows], k, v, at[rows])).abs().max() < 1e-5


def test_without_the_kernel_that_returns_the_log_sum_exp(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = qkv(40, 90)
    at = torch.arange(50, 90)
    merged = ATTENTION.causal(q, k, v), ATTENTION.at_positions(q, k, v, positions_T=at)
    monkeypatch.setattr("shared.model.attention._has_lse", lambda _q: False)
    masked = ATTENTION.causal(q, k, v), ATTENTION.at_positions(q, k, v, positions_T=at)
    for a, b in zip(merged, masked, strict=True):
        assert (a - b).abs().max() < 1e-5


def test_chunks_equal_the_whole() -> None:
    q, k, v = qkv(200, 200)
    parts = [ATTENTION.causal(q[a : a + 64], k[: a + 64], v[: a + 64]) for a in range(0, 200, 64)]
    assert (torch.cat(parts) - ATTENTION.causal(q, k, v)).abs().max() < 1e-5


def test_bfloat16() -> None:
    q, k, v = (x.bfloat16() for x in qkv(20, 50))
    got = ATTENTION.causal(q, k, v)
    assert got.dtype == torch.bfloat16
    assert (got - slow(q, k, v, torch.arange(30, 50))).abs().max() < 0.05
