import pytest
import torch

from decode_service.sparsity.page_bounds import PageBounds, logit_bounds, page_bounds
from tests.support.growing_rows import GrowingRow
from tests.support.sparse_steps import HEAD_DIM, plain_facts


@pytest.mark.parametrize("slots", [1, 15, 16, 17, 48, 50])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bounds_are_the_largest_and_smallest_keys_of_each_page(slots, dtype):
    keys = torch.randn(slots, 2, HEAD_DIM).to(dtype)
    bounds = page_bounds(keys)
    assert bounds.dtype is dtype
    pages = [keys[start : start + 16] for start in range(0, slots, 16)]
    assert bounds.shape == (2, len(pages), 2 * HEAD_DIM)
    for number, page in enumerate(pages):
        assert torch.equal(bounds[:, number, :HEAD_DIM], page.amax(dim=0))
        assert torch.equal(bounds[:, number, HEAD_DIM:], page.amin(dim=0))


def test_a_page_of_one_slot_is_bounded_by_its_logit():
    keys, query = torch.randn(1, 2, HEAD_DIM), torch.randn(4, HEAD_DIM)
    bounds = logit_bounds(query, page_bounds(keys))
    logits = torch.stack([query[head] @ keys[0, head // 2] for head in range(4)]) * HEAD_DIM**-0.5
    assert bounds.shape == (2, 2, 1)
    assert torch.allclose(bounds.flatten(), logits, atol=1e-6)


@pytest.mark.parametrize("prompt", [1, 15, 16, 17, 160, 1100])
def test_bounds_kept_page_by_page_equal_those_made_anew(prompt):
    row = GrowingRow(plain_facts(prompt, num_layers=1), steps=70)
    grown = PageBounds()
    for generated in range(1, 71):
        kv = row.kv(0, generated)
        num_pages = -(-kv.length // 16)
        covered = grown.cover(kv, num_pages=num_pages)
        anew = PageBounds().cover(row.kv(0, generated), num_pages=num_pages)
        assert torch.equal(covered, anew)
        grown.keep(kv.length // 16)


def test_bounds_that_were_kept_survive_when_the_row_outgrows_its_room():
    row = GrowingRow(plain_facts(160, num_layers=1), steps=2000)
    bounds = PageBounds()
    bounds.cover(row.kv(0, 1), num_pages=10)
    bounds.keep(10)
    kv = row.kv(0, 2000)
    grown = bounds.cover(kv, num_pages=135)
    assert torch.equal(grown, page_bounds(kv.keys_TGD))
    assert row.asked[0] == [0, 10]


def test_keys_of_full_pages_are_read_once_and_then_only_the_last_page():
    row = GrowingRow(plain_facts(60, num_layers=1), steps=10)
    bounds = PageBounds()
    for generated in range(1, 11):
        kv = row.kv(0, generated)
        bounds.cover(kv, num_pages=-(-kv.length // 16))
        bounds.keep(kv.length // 16)
    assert row.asked[0] == [0, 3, 3, 3, 4, 4, 4, 4, 4, 4]


def test_nothing_is_read_where_all_pages_are_kept():
    row = GrowingRow(plain_facts(64, num_layers=1), steps=3)
    bounds = PageBounds()
    for generated in (1, 2, 3):
        bounds.cover(row.kv(0, generated), num_pages=4)
        bounds.keep(4)
    assert row.asked[0] == [0]


def test_bounds_that_were_not_kept_are_made_again_from_the_keys_there_are_then():
    row = GrowingRow(plain_facts(40, num_layers=1), steps=2)
    bounds = PageBounds()
    kv = row.kv(0, 1)
    kv.keys_TGD = kv.keys_TGD + 100.0
    bounds.cover(kv, num_pages=3)
    again = bounds.cover(row.kv(0, 1), num_pages=3)
    assert torch.equal(again, page_bounds(row.kv(0, 1).keys_TGD))


def test_no_page_has_no_bounds():
    row = GrowingRow(plain_facts(3, num_layers=1), steps=1)
    assert PageBounds().cover(row.kv(0, 1), num_pages=0).shape == (2, 0, 2 * HEAD_DIM)
