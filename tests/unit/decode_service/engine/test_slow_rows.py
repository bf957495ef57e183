"""Answers that the kernels leave out: which they are, and what is said of them."""

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from decode_service.engine.slow_rows import SlowRows
from shared.model.profile import paper_profile
from shared.types.methods import KvSelect, PageHeads, SparsityParams
from tests.support.decode_rows import make_cache, make_prompt, place

DELTA = SparsityParams(full_layers=(0, 1, 3), page_budget=4, recency_pages=1)
BY_HEAD = replace(DELTA, heads=PageHeads.KV_HEAD)
REUSE = replace(DELTA, refresh_every=2)


def row_of(model, sparsity, mode):
    prompt, ids = make_prompt(model, mode=mode, tokens=60, kept=40)
    return place(model, make_cache(model), prompt, first_token=ids[-1], sparsity=sparsity)


@pytest.mark.parametrize(
    ("sparsity", "mode", "reason"),
    [
        (None, "head", ""),
        (DELTA, "identity", ""),
        (DELTA, "layer", ""),
        (DELTA, "head", "kv_select_head"),
        (BY_HEAD, "shared", "policy"),
        (REUSE, "shared", "policy"),
    ],
)
def test_rows_are_counted_by_why_no_kernel_serves_them(tiny_model, sparsity, mode, reason) -> None:
    counted: list[str] = []
    rows = SlowRows(kernels=True, on_row=counted.append)
    with capture_logs() as lines:
        for _ in range(2):
            rows.begun(row_of(tiny_model, sparsity, mode))
    assert counted == ([reason] * 2 if reason else [])
    assert [line["reason"] for line in lines] == ([reason] if reason else []), "logged once"
    assert ("in PyTorch so far: 2" in rows.note) is bool(reason)
    assert ("choose kv_select shared" in rows.note) is (reason == "kv_select_head")


def test_without_kernels_no_row_is_left_out(tiny_model) -> None:
    counted: list[str] = []
    rows = SlowRows(kernels=False, on_row=counted.append)
    rows.begun(row_of(tiny_model, DELTA, "head"))
    assert (counted, rows.note) == ([], "")


def test_the_banner_says_it_beforehand(tiny_model) -> None:
    profile = paper_profile(tiny_model.config)
    assert profile.pruning.kv_select is KvSelect.HEAD
    shared = replace(profile, pruning=replace(profile.pruning, kv_select=KvSelect.SHARED))
    quest = replace(profile, sparsity=replace(profile.sparsity, policy="quest"))
    counted: list[str] = []
    rows = SlowRows(kernels=True, on_row=counted.append)
    assert "choose kv_select shared" in rows.outlook(profile)
    assert rows.outlook(shared) == "none"
    assert rows.outlook(quest).startswith("all: ")
    assert SlowRows(kernels=False, on_row=counted.append).outlook(quest) == "none"
