"""Attention of kept queries against its slow twin and the function that serves today."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from prefill_service.kernels.kept_queries import QueryTiles, kept_queries_attention, query_tiles
from shared.errors import ConfigError
from shared.model.attention import TorchAttention
from tests.support.kernel_rows import DEVICE
from tests.unit.prefill_service.kernels.slow_kept_queries import slow_kept_queries

SMALL = QueryTiles(queries=16, keys=16, warps=4)


def prompt(
    length: int, queries: int, *, kv_heads: int, group: int, head_dim: int = 16
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(length)
    shapes = [(queries, kv_heads * group, head_dim), *[(length, kv_heads, head_dim)] * 2]
    q, k, v = (torch.randn(shape, generator=generator).to(DEVICE) for shape in shapes)
    return q, k, v


def at(positions: list[int]) -> Tensor:
    return torch.tensor(positions, device=DEVICE)


@pytest.mark.parametrize(
    ("positions", "length", "kv_heads", "group", "head_dim", "tiles"),
    [
        pytest.param([0], 1, 1, 1, 64, SMALL, id="one token"),
        pytest.param([0, 1, 2, 15, 16, 17], 40, 1, 3, 64, SMALL, id="around a block's end"),
        pytest.param([79], 80, 2, 4, 128, SMALL, id="the last token alone"),
        pytest.param(list(range(1, 70, 3)), 70, 1, 7, 64, SMALL, id="two blocks of queries"),
        pytest.param(list(range(33)), 33, 2, 8, 16, SMALL, id="every token"),
        pytest.param([5, 40, 90, 129], 130, 1, 1, 256, query_tiles(256), id="head size 256"),
        pytest.param([64, 65, 199], 200, 1, 2, 64, query_tiles(64), id="sizes as served"),
    ],
)
def test_equals_the_slow_twin(positions, length, kv_heads, group, head_dim, tiles):
    q, k, v = prompt(length, len(positions), kv_heads=kv_heads, group=group, head_dim=head_dim)
    # Keys that no query sees may hold anything.
    k[positions[-1] + 1 :] = torch.nan
    v[positions[-1] + 1 :] = torch.nan
    out = kept_queries_attention(q, (k, v), at(positions), tiles=tiles)
    wanted = slow_kept_queries(q, k, v, positions)
    torch.testing.assert_close(out.double(), wanted, atol=1e-5, rtol=1e-5)


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_equals_the_attention_that_serves(data):
    length = data.draw(st.integers(1, 90), label="length")
    kept = data.draw(st.sets(st.integers(0, length - 1), min_size=1, max_size=40), label="kept")
    q, k, v = prompt(length, len(kept), kv_heads=data.draw(st.integers(1, 2)), group=3)
    positions_T = at(sorted(kept))
    ours = kept_queries_attention(q, (k, v), positions_T, tiles=SMALL)
    served = TorchAttention().at_positions(q, k, v, positions_T=positions_T)
    torch.testing.assert_close(ours, served, atol=1e-5, rtol=1e-5)


def test_float16_and_views():
    q, k, v = (x.half() for x in prompt(60, 20, kv_heads=2, group=2))
    positions = list(range(3, 60, 3))[:20]
    wide = torch.cat((k, v), dim=1)
    views = (wide[:, :2], wide[:, 2:])
    out = kept_queries_attention(q[: len(positions)], views, at(positions), tiles=SMALL)
    wanted = slow_kept_queries(q[: len(positions)], k, v, positions)
    assert out.dtype is torch.float16
    torch.testing.assert_close(out.double(), wanted, atol=3e-3, rtol=3e-3)


def test_no_queries():
    q, k, v = prompt(5, 0, kv_heads=1, group=2)
    assert kept_queries_attention(q, (k, v), at([])).shape == (0, 2, 16)


def test_an_unknown_head_size_is_refused():
    q, k, v = prompt(5, 1, kv_heads=1, group=1, head_dim=80)
    with pytest.raises(ConfigError, match="not 80"):
        kept_queries_attention(q, (k, v), at([4]))
