"""Paged decode attention against its slow twin: awkward lengths, groups and pieces."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decode_service.kernels.merge_pieces import AttentionOutput
from decode_service.kernels.paged_attention import PageTables, paged_attention
from decode_service.kernels.split_plan import SplitPlan, plan_splits
from shared.errors import ConfigError
from tests.support.kernel_rows import DEVICE, PagedRows, attend, make_rows, poisoned_dump
from tests.unit.decode_service.kernels.slow_attention import slow_attention, slow_lse


def assert_close_to_slow(rows: PagedRows, plan: SplitPlan) -> None:
    output = attend(rows, plan)
    tolerance = 1e-5 if rows.q_BHD.dtype is torch.float32 else 3e-3
    torch.testing.assert_close(
        output.out_BHD.double(), slow_attention(rows), atol=tolerance, rtol=tolerance
    )
    torch.testing.assert_close(
        output.lse_BH.double(), slow_lse(rows), atol=tolerance, rtol=tolerance
    )


@pytest.mark.parametrize(
    ("lengths", "kv_heads", "group", "head_dim", "splits", "block"),
    [
        pytest.param((1,), 1, 1, 64, 1, 16, id="one token"),
        pytest.param((15,), 1, 3, 64, 2, 16, id="one page, not full"),
        pytest.param((16,), 3, 3, 64, 4, 16, id="one page, full"),
        pytest.param((31, 32, 33), 1, 4, 128, 2, 32, id="around a page's end"),
        pytest.param((0, 5, 64), 1, 7, 128, 3, 16, id="rows of no tokens"),
        pytest.param((200, 3), 1, 8, 64, 5, 32, id="short rows beside a long one"),
        pytest.param((95, 97), 1, 1, 256, 4, 32, id="head size 256"),
        pytest.param((130,), 2, 6, 128, 1, 64, id="one piece, blocks of 64"),
        pytest.param((300,), 1, 2, 64, 19, 16, id="a count of pieces that is no power of two"),
        pytest.param((1100, 20), 1, 2, 16, 70, 16, id="more pieces than are joined at once"),
        pytest.param((40, 49), 1, 20, 64, 2, 16, id="more heads than a product's rows"),
    ],
)
def test_equals_the_slow_twin(lengths, kv_heads, group, head_dim, splits, block):
    rows = make_rows(lengths, kv_heads=kv_heads, group=group, head_dim=head_dim)
    assert_close_to_slow(rows, SplitPlan(splits=splits, block=block))


def test_float16():
    rows = make_rows((70, 16, 1), kv_heads=2, group=4, head_dim=64, dtype=torch.float16)
    assert_close_to_slow(rows, SplitPlan(splits=2, block=16))


@settings(max_examples=8, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 70), min_size=1, max_size=2).map(tuple),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 4),
    splits=st.integers(1, 4),
    block=st.sampled_from([16, 32]),
    seed=st.integers(0, 9),
)
def test_any_rows_and_any_pieces(lengths, kv_heads, group, splits, block, seed):
    rows = make_rows(lengths, kv_heads=kv_heads, group=group, head_dim=16, seed=seed)
    assert_close_to_slow(rows, SplitPlan(splits=splits, block=block))


def test_large_logits_stay_finite():
    rows = make_rows((50,), kv_heads=1, group=2, head_dim=16, key_bias=4000.0)
    output = attend(rows, SplitPlan(splits=2, block=16))
    torch.testing.assert_close(output.out_BHD.double(), slow_attention(rows), atol=2e-3, rtol=2e-3)


def test_where_pages_lie_changes_no_bit():
    rows = make_rows((37, 64), kv_heads=2, group=3, head_dim=16)
    plan = SplitPlan(splits=2, block=16)
    order = torch.randperm(rows.keys_PSGD.shape[0]).to(DEVICE)
    moved = PagedRows(
        q_BHD=rows.q_BHD,
        keys_PSGD=rows.keys_PSGD[order],
        values_PSGD=rows.values_PSGD[order],
        tables=PageTables(
            pages_BM=order.argsort()[rows.tables.pages_BM.long()].int(),
            lengths_B=rows.tables.lengths_B,
        ),
        lengths=rows.lengths,
    )
    assert torch.equal(attend(rows, plan).out_BHD, attend(moved, plan).out_BHD)


def test_a_pool_inside_a_larger_memory():
    rows = make_rows((33, 20), kv_heads=2, group=2, head_dim=16)
    plan = SplitPlan(splits=2, block=16)
    memory = torch.stack((rows.keys_PSGD, rows.values_PSGD), dim=1)
    output = AttentionOutput.empty(rows.q_BHD, plan)
    kv_PSGD = (memory[:, 0], memory[:, 1])
    paged_attention(rows.q_BHD, kv_PSGD, rows.tables, plan=plan, output=output)
    assert torch.equal(output.out_BHD, attend(rows, plan).out_BHD)


def test_the_dump_changes_no_bit_and_holds_every_logit():
    rows = make_rows((45, 16), kv_heads=2, group=3, head_dim=16)
    plan = SplitPlan(splits=2, block=16)
    dump = poisoned_dump(rows, plan)
    output = attend(rows, plan, dump=dump)
    assert torch.equal(output.out_BHD, attend(rows, plan).out_BHD)
    for row, length in enumerate(rows.lengths):
        held = dump.logits_BHT[row].isfinite().all(0)
        assert held.tolist() == [t < length for t in range(len(held))]


@pytest.mark.parametrize("head_dim", [80, 96, 512])
def test_an_unknown_head_size_is_refused(head_dim):
    rows = make_rows((3,), kv_heads=1, group=1, head_dim=head_dim)
    with pytest.raises(ConfigError, match=f"does not read a head size of {head_dim}"):
        attend(rows, SplitPlan(splits=1, block=16))


def test_plans_fill_the_device_and_spare_short_rows():
    def splits(rows: int, kv_heads: int, most_tokens: int) -> int:
        return plan_splits(
            rows=rows, kv_heads=kv_heads, most_tokens=most_tokens, head_dim=128
        ).splits

    assert splits(64, 2, 18_432) == 4
    assert splits(16, 8, 32_768) == 4
    assert splits(1, 8, 32_768) == 64
    assert splits(1, 8, 200) == 1
    assert splits(4096, 8, 32_768) == 1


@pytest.mark.parametrize("sizes", [{"splits": 0}, {"splits": 129}, {"splits": 1, "block": 48}])
def test_impossible_plans_are_refused(sizes):
    with pytest.raises(ConfigError):
        SplitPlan(**sizes)
