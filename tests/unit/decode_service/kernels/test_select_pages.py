"""The choice of pages on the device against sorting, and attention over what it chose."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decode_service.kernels.page_scores import score_pages
from decode_service.kernels.paged_attention import PageTables
from decode_service.kernels.select_pages import Budgets, ChosenPages, select_pages
from decode_service.kernels.split_plan import SplitPlan
from decode_service.sparsity.page_scores import top_pages
from shared.errors import ConfigError
from shared.kv.geometry import PAGE_SIZE, pages_for
from tests.support.kernel_rows import DEVICE, PagedRows, attend, make_rows, poisoned_dump
from tests.unit.decode_service.kernels.slow_attention import slow_attention
from tests.unit.decode_service.kernels.slow_selection import slow_selection

LEFT = -7


def ints(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def choose(
    scores_RU: torch.Tensor, table_RM: torch.Tensor, lengths: list[int], budgets: Budgets
) -> ChosenPages:
    capacity = int(budgets.pages_R.max())
    pages_RK = torch.full((len(lengths), capacity), LEFT, dtype=torch.int32, device=DEVICE)
    chosen = ChosenPages(pages_RK=pages_RK, visible_R=torch.full_like(pages_RK[:, 0], LEFT))
    select_pages(scores_RU, table_RM, ints(lengths), budgets=budgets, chosen=chosen)
    return chosen


def assert_choice(
    scores: list[list[float]], lengths: list[int], rules: list[tuple[int, int]]
) -> None:
    width = max(map(len, scores))
    padded = [row + [math.nan] * (width - len(row)) for row in scores]
    table = torch.randperm(len(scores) * width).reshape(len(scores), width).int().to(DEVICE)
    budgets = Budgets(
        pages_R=ints([budget for budget, _ in rules]), recency_R=ints([last for _, last in rules])
    )
    chosen = choose(torch.tensor(padded, device=DEVICE), table, lengths, budgets)
    for row, (budget, recency) in enumerate(rules):
        pages, visible = slow_selection(scores[row], lengths[row], budget=budget, recency=recency)
        wanted = table[row][pages].tolist()
        got = chosen.pages_RK[row].tolist()
        assert got == wanted + [LEFT] * (len(got) - len(wanted))
        assert int(chosen.visible_R[row]) == visible


def test_rows_of_many_kinds():
    assert_choice(
        scores=[
            [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
            [1.0] * 7,
            [0.0, math.nan, -1.0, -math.inf, 0.5, -0.0, 0.0],
            [3.0, 2.0, 1.0],
            [1.0],
            [0.0] * 6 + [9.0],
        ],
        lengths=[7 * 16, 6 * 16 + 1, 7 * 16 - 1, 3 * 16, 1, 6 * 16 + 15],
        rules=[(4, 1), (4, 2), (6, 1), (3, 1), (5, 2), (3, 1)],
    )


def test_a_row_of_no_tokens_chooses_nothing():
    assert_choice(scores=[[1.0, 2.0]], lengths=[0], rules=[(3, 1)])


def test_both_zeros_are_equal():
    assert_choice(scores=[[0.0, -0.0, 0.0, -0.0, 0.0, 1.0]], lengths=[6 * 16], rules=[(4, 1)])


def test_scores_below_the_smallest_normal_number_are_told_apart():
    tiny = [0.0, 3e-42, 1e-45, 2e-42, 0.0, 4e-42, 0.0]
    assert_choice(scores=[tiny], lengths=[7 * 16], rules=[(4, 1)])


VALUES = st.sampled_from([0.0, -0.0, 1.0, 0.5, -2.0, math.inf, -math.inf, math.nan]) | st.floats(
    width=32, allow_nan=False
)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_scores(data):
    scores = data.draw(st.lists(VALUES, min_size=1, max_size=40), label="scores")
    length = len(scores) * PAGE_SIZE - data.draw(st.integers(0, 15), label="free slots")
    recency = data.draw(st.integers(1, 6), label="recency")
    budget = data.draw(st.integers(recency + 2, 45), label="budget")
    assert_choice([scores], [length], [(budget, recency)])


def test_equals_the_policys_rule():
    scores_RU = torch.rand((3, 1200), device=DEVICE).round(decimals=2)
    table = torch.arange(3600, dtype=torch.int32, device=DEVICE).reshape(3, 1200)
    budgets = Budgets(pages_R=ints([64] * 3), recency_R=ints([8] * 3))
    chosen = choose(scores_RU, table, [1200 * PAGE_SIZE] * 3, budgets)
    wanted = top_pages(scores_RU, budget=64, recency=8)
    assert torch.equal(chosen.pages_RK.long() - table[:, :1], wanted)


def test_rows_of_too_many_pages_are_refused():
    scores_RU = torch.zeros((1, 16_385), device=DEVICE)
    with pytest.raises(ConfigError, match="16385 pages"):
        choose(scores_RU, scores_RU.int(), [5], Budgets(pages_R=ints([3]), recency_R=ints([1])))


@pytest.mark.parametrize("group", [3, 7])
def test_attention_over_the_choice(group):
    lengths = (130, 15, 97)
    rows = make_rows(lengths, kv_heads=1, group=group, head_dim=64)
    plan = SplitPlan(splits=2, block=16)
    dump = poisoned_dump(rows, plan)
    output = attend(rows, plan, dump=dump)
    tables = rows.tables
    scores = torch.full(tables.pages_BM.shape, torch.nan, device=DEVICE)
    score_pages(dump, output.lse_BH, tables.lengths_B, plan=plan, scores_BU=scores)
    budgets = Budgets(pages_R=ints([4, 4, 5]), recency_R=ints([1, 2, 1]))
    chosen = choose(scores, tables.pages_BM, list(lengths), budgets)
    visible = tuple(chosen.visible_R.tolist())
    assert visible == (3 * 16 + 2, 15, 4 * 16 + 1)
    few = PagedRows(
        q_BHD=rows.q_BHD,
        keys_PSGD=rows.keys_PSGD,
        values_PSGD=rows.values_PSGD,
        tables=PageTables(pages_BM=chosen.pages_RK, lengths_B=chosen.visible_R),
        lengths=visible,
    )
    sparse = attend(few, plan).out_BHD
    torch.testing.assert_close(sparse.double(), slow_attention(few), atol=1e-5, rtol=1e-5)
    whole = [row for row, length in enumerate(lengths) if pages_for(length) <= 4]
    assert torch.equal(sparse[whole], output.out_BHD[whole]), "a row within its budget is dense"
