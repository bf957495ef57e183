"""Attention mass inside a read, against loops."""

import math

import pytest
import torch

from decode_service.engine.recall import mass_inside, mean_mass
from decode_service.sparsity.base import Selection, page_selection, slot_selection
from decode_service.sparsity.page_scores import full_probs

HEADS, KV_HEADS, SIZE, SLOTS = 6, 2, 8, 45


def random_query() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return (
        2 * torch.randn(HEADS, SIZE, generator=generator),
        torch.randn(SLOTS, KV_HEADS, SIZE, generator=generator),
    )


def slow_mass(q_HD: torch.Tensor, k_TGD: torch.Tensor, head: int, slots: list[int]) -> float:
    keys = k_TGD[:, head // (HEADS // KV_HEADS)].tolist()
    query = q_HD[head].tolist()
    weights = [
        math.exp(sum(a * b for a, b in zip(query, key, strict=True)) / math.sqrt(SIZE))
        for key in keys
    ]
    return sum(weights[slot] for slot in slots) / sum(weights)


@pytest.mark.parametrize("rows", [1, KV_HEADS, HEADS])
@pytest.mark.parametrize("unit", [1, 16])
def test_mass_is_that_of_the_slots_each_head_reads(rows: int, unit: int) -> None:
    q_HD, k_TGD = random_query()
    units_RU = torch.tensor([[row % 2, 2] for row in range(rows)])
    selection: Selection = (
        slot_selection(units_RU) if unit == 1 else page_selection(units_RU, kv_length=SLOTS)
    )
    wanted = []
    for head in range(HEADS):
        units = units_RU[head // (HEADS // rows)].tolist()
        slots = [s for u in units for s in range(u * unit, min((u + 1) * unit, SLOTS))]
        wanted.append(slow_mass(q_HD, k_TGD, head, slots))
    got_H = mass_inside(full_probs(q_HD, k_TGD), selection)
    torch.testing.assert_close(got_H, torch.tensor(wanted), atol=1e-5, rtol=0)
    mean = float(mean_mass(q_HD, k_TGD, selection))
    assert mean == pytest.approx(sum(wanted) / HEADS, abs=1e-5)


def test_reading_everything_leaves_nothing_out() -> None:
    q_HD, k_TGD = random_query()
    every_page = page_selection(torch.tensor([[0, 1, 2]]), kv_length=SLOTS)
    for selection in (None, every_page):
        torch.testing.assert_close(
            mass_inside(full_probs(q_HD, k_TGD), selection), torch.ones(HEADS), atol=1e-5, rtol=0
        )


def test_narrow_dtypes_are_weighed_in_float32() -> None:
    q_HD, k_TGD = random_query()
    probs_HT = full_probs(q_HD.bfloat16(), k_TGD.bfloat16())
    assert probs_HT.dtype is torch.float32
    torch.testing.assert_close(probs_HT.sum(dim=1), torch.ones(HEADS), atol=1e-5, rtol=0)
