"""Norm, rotation, gate and gather kernels against the functions that serve on a CPU."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name torch users know
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from prefill_service.engine.layer_steps import LayerKv
from prefill_service.engine.selection import gathered
from prefill_service.kernels.gated_product import gated_product
from prefill_service.kernels.gather_slots import gather_slots
from prefill_service.kernels.rotate_heads import HeadNorms, HeadTargets, rotate_heads
from prefill_service.kernels.row_norm import row_norm
from shared.errors import ConfigError
from shared.model.rope import RopeTable, rotate
from tests.support.kernel_rows import DEVICE

EPS = 1e-5


def normal(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.mark.parametrize("width", [1, 48, 64, 1000])
@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_row_norm(tokens: int, width: int):
    wide_TE, scale_E = normal(tokens, width + 3), normal(width, seed=1)
    x_TE = wide_TE[:, :width]
    wanted = F.rms_norm(x_TE, (width,), scale_E, EPS)
    torch.testing.assert_close(row_norm(x_TE, scale_E, eps=EPS), wanted, atol=1e-5, rtol=1e-5)


def test_a_norm_is_rounded_once():
    x_TE, scale_E = normal(3, 64).half(), normal(64, seed=1).half()
    wanted = F.rms_norm(x_TE.float(), (64,), scale_E.float(), EPS).half()
    assert torch.equal(row_norm(x_TE, scale_E, eps=EPS), wanted)


@pytest.mark.parametrize("width", [1, 96, 2049])
@pytest.mark.parametrize("tokens", [0, 3])
def test_gated_product(tokens: int, width: int):
    gate_up = normal(tokens, 2 * width)
    wanted = F.silu(gate_up[:, :width]) * gate_up[:, width:]
    torch.testing.assert_close(gated_product(gate_up), wanted, atol=1e-5, rtol=1e-5)


def table_of(tokens: int, head_dim: int) -> RopeTable:
    angle = torch.cat((normal(tokens, head_dim // 2, seed=2),) * 2, dim=1)
    return RopeTable(angle.cos(), angle.sin())


@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(1, 1, 16), (9, 3, 64), (8, 1, 256), (6, 2, 128)]
)
def test_rotation_splits_the_product(heads: int, kv_heads: int, head_dim: int, *, normed: bool):
    tokens = 4
    product = normal(tokens, (heads + 2 * kv_heads) * head_dim)
    table = table_of(tokens, head_dim)
    norms = HeadNorms(q_D=normal(head_dim, seed=3), k_D=normal(head_dim, seed=4), eps=EPS)
    every = product.view(tokens, -1, head_dim)
    q, k, v = torch.split(every, [heads, kv_heads, kv_heads], dim=1)
    if normed:
        q = F.rms_norm(q, (head_dim,), norms.q_D, EPS)
        k = F.rms_norm(k, (head_dim,), norms.k_D, EPS)
    got_q = torch.full((tokens, heads, head_dim), torch.nan, device=DEVICE)
    got_k, got_v = (
        torch.full((tokens, kv_heads, head_dim), torch.nan, device=DEVICE) for _ in range(2)
    )
    rotate_heads(
        product,
        (table.cos_TD, table.sin_TD),
        to=HeadTargets(q_THD=got_q, kv_TGD=(got_k, got_v)),
        norms=norms if normed else None,
    )
    torch.testing.assert_close(got_q, rotate(q, table), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(got_k, rotate(k, table), atol=1e-5, rtol=1e-5)
    assert torch.equal(got_v, v)


@pytest.mark.parametrize("part", ["queries", "keys and values"])
def test_rotation_of_a_part(part: str):
    tokens, head_dim, table = 3, 32, table_of(3, 32)
    if part == "queries":
        product = normal(tokens, 5 * head_dim)
        out = torch.full((tokens, 5, head_dim), torch.nan, device=DEVICE)
        rotate_heads(product, (table.cos_TD, table.sin_TD), to=HeadTargets(q_THD=out))
        wanted = rotate(product.view(tokens, 5, head_dim), table)
        torch.testing.assert_close(out, wanted, atol=1e-5, rtol=1e-5)
        return
    product = normal(tokens, 4 * head_dim)
    k, v = (torch.full((tokens, 2, head_dim), torch.nan, device=DEVICE) for _ in range(2))
    rotate_heads(product, (table.cos_TD, table.sin_TD), to=HeadTargets(kv_TGD=(k, v)))
    wanted = product.view(tokens, 4, head_dim)
    torch.testing.assert_close(k, rotate(wanted[:, :2], table), atol=1e-5, rtol=1e-5)
    assert torch.equal(v, wanted[:, 2:])


def test_a_head_size_that_rotation_was_not_written_for():
    table = table_of(1, 80)
    out = HeadTargets(q_THD=torch.empty(1, 1, 80))
    with pytest.raises(ConfigError, match="rotation on Triton"):
        rotate_heads(normal(1, 80), (table.cos_TD, table.sin_TD), to=out)


@settings(max_examples=12, deadline=None)
@given(
    tokens=st.integers(1, 60),
    slots=st.integers(0, 70),
    kv_heads=st.integers(1, 3),
    per_head=st.booleans(),
)
def test_gather(tokens: int, slots: int, kv_heads: int, *, per_head: bool):
    kv = LayerKv(k_TGD=normal(tokens, kv_heads, 16), v_TGD=normal(tokens, kv_heads, 16, seed=1))
    generator = torch.Generator().manual_seed(slots)
    rows = kv_heads if per_head else 1
    positions_RN = torch.randint(0, tokens, (rows, slots), generator=generator).to(DEVICE)
    ours = gather_slots((kv.k_TGD, kv.v_TGD), positions_RN)
    for got, wanted in zip(ours, gathered(kv, positions_RN), strict=True):
        assert torch.equal(got, wanted)
