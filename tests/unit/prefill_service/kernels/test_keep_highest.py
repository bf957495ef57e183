"""The selection kernel against the function that serves on a CPU: equal in every place."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prefill_service.kernels import keep_highest as module
from prefill_service.kernels.keep_highest import keep_highest
from prefill_service.ranking.select import select_positions
from tests.support.kernel_rows import DEVICE

SCORES = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, float("nan"), float("inf"), float("-inf"), 1e-45, -1e-45]),
    st.floats(-1.0, 1.0, width=32),
    st.floats(width=32),
)


def both(rows: list[list[float]], *, tail: int, kept: int, **rules: Any) -> None:
    scores_RC = torch.tensor(rows, dtype=torch.float32, device=DEVICE)
    before = scores_RC.clone()
    rules |= {"prompt_tokens": scores_RC.shape[1] + tail, "kept_tokens": kept}
    ours, wanted = keep_highest(scores_RC, **rules), select_positions(scores_RC, **rules)
    assert ours.dtype is torch.int64
    assert ours.tolist() == wanted.tolist()
    assert torch.equal(scores_RC.view(torch.int32), before.view(torch.int32)), "left alone"


@settings(max_examples=40, deadline=None)
@given(data=st.data(), protect_first=st.booleans())
def test_equals_the_slow_twin(data: st.DataObject, *, protect_first: bool):
    candidates = data.draw(st.integers(1, 40))
    rows = data.draw(
        st.lists(st.lists(SCORES, min_size=candidates, max_size=candidates), min_size=1, max_size=3)
    )
    tail = data.draw(st.integers(0, 9))
    kept = tail + data.draw(st.integers(1, candidates))
    both(rows, tail=tail, kept=kept, protect_first=protect_first)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_protected_positions(data: st.DataObject):
    candidates = data.draw(st.integers(4, 30))
    row = data.draw(st.lists(SCORES, min_size=candidates, max_size=candidates))
    wanted = data.draw(st.sets(st.integers(0, candidates - 1), max_size=3))
    protected_P = torch.tensor(sorted(wanted), dtype=torch.int64, device=DEVICE)
    kept = 2 + data.draw(st.integers(max(1, len(wanted | {0})), candidates))
    both([row], tail=2, kept=kept, protect_first=True, protected_P=protected_P)


@pytest.mark.parametrize("candidates", [31, 32, 33, 100])
def test_scores_over_several_blocks(monkeypatch: pytest.MonkeyPatch, candidates: int):
    monkeypatch.setattr(module, "_MOST_BLOCK", 16)
    monkeypatch.setattr(module, "_STRETCH", 32)
    generator = torch.Generator().manual_seed(candidates)
    scores = (torch.randn((2, candidates), generator=generator) * 3).round()
    for kept in (1 + 20, candidates // 2 + 20, candidates + 19):
        both(scores.tolist(), tail=20, kept=kept, protect_first=False)


def test_keep_all():
    both([[3.0, 1.0]], tail=1, kept=3, protect_first=True)
