"""Steps of whole batches by kernels against the PyTorch path, over real sequences."""

import numpy as np
import pytest

from decode_service.sparsity.base import LayerRole
from shared.errors import InternalError
from shared.types.methods import PageHeads, PageLayout, SparsityParams
from shared.types.sampling import SamplingParams
from tests.support.batch_rows import MAX_TOKENS, RowKind, TwoPaths
from tests.support.kernel_rows import DEVICE

pytestmark = pytest.mark.skipif(
    DEVICE.type == "cuda", reason="rows of these tests live on the CPU, where the interpreter runs"
)

DELTA = SparsityParams(full_layers=(0, 1, 3), page_budget=4, recency_pages=1)


@pytest.fixture
def two(tiny_model):
    return TwoPaths(tiny_model)


@pytest.mark.parametrize("mode", ["identity", "shared", "layer"])
def test_delta_in_every_layout_that_kernels_know(two, mode):
    row = two.add(RowKind(sparsity=DELTA, tokens=110, kept=77, mode=mode))
    for _ in range(4):
        two.step([row])


@pytest.mark.parametrize("full_layers", [(0,), (0, 2, 4)])
def test_delta_layers_anywhere(two, full_layers):
    sparsity = SparsityParams(full_layers=full_layers, page_budget=5, recency_pages=2)
    row = two.add(RowKind(sparsity=sparsity, tokens=120, kept=90, mode="shared"))
    two.step([row])
    two.step([row])


@pytest.mark.parametrize(("front", "rest"), [(0, 15), (1, 0), (15, 1)])
def test_page_edges_of_both_groups(two, front, rest):
    row = two.add(RowKind(sparsity=DELTA, tokens=96 + front, kept=64 + rest, mode="shared"))
    for _ in range(3):
        two.step([row])


def test_a_mixed_batch_whose_rows_come_and_go(two):
    long = two.add(RowKind(sparsity=DELTA, tokens=130))
    dense = two.add(RowKind(sparsity=None, tokens=100, kept=60, mode="shared"))
    within = two.add(RowKind(sparsity=DELTA, tokens=20, kept=17, mode="shared"))
    two.step([long, dense, within])
    two.step([long, dense, within])
    late = two.add(RowKind(sparsity=DELTA, tokens=90, kept=70, mode="layer"))
    two.release(long)
    two.step([dense, within, late])
    two.step([late])
    two.step([dense])


def test_rows_within_their_budget_take_the_dense_step(two):
    rows = [two.add(RowKind(sparsity=DELTA, tokens=62)) for _ in range(2)]
    two.step(rows)
    (batch,) = two.runner._batches.values()
    assert [shape.choice for shape in batch._steps] == [0]
    two.step(rows)
    assert [shape.choice for shape in batch._steps] == [0]
    two.step(rows)  # 65 slots: a fifth page
    assert [shape.choice for shape in batch._steps] == [0, 4]


def test_a_forced_choice_of_every_page(two):
    row = two.add(RowKind(sparsity=DELTA, tokens=40, force=True))
    two.step([row])
    (batch,) = two.runner._batches.values()
    assert [shape.choice for shape in batch._steps] == [4]


def test_a_choice_by_segments(two):
    sparsity = SparsityParams(
        full_layers=(0, 1, 3), page_budget=4, recency_pages=1, layout=PageLayout.SEGMENT
    )
    pruned = two.add(RowKind(sparsity=sparsity, tokens=110, kept=80, mode="shared"))
    assert pruned.row_policy.roles[2] is LayerRole.FULL
    two.step([pruned])


OTHERS = {
    "head layout": (DELTA, "head"),
    "a choice a head": (
        SparsityParams(
            full_layers=(0, 1, 3), page_budget=4, recency_pages=1, heads=PageHeads.KV_HEAD
        ),
        "shared",
    ),
    "reuse": (
        SparsityParams(full_layers=(0, 1, 3), page_budget=4, recency_pages=1, refresh_every=2),
        "shared",
    ),
    "mass": (
        SparsityParams(full_layers=(0, 1, 3), page_budget=4, recency_pages=1, mass=0.5),
        "shared",
    ),
    "quest": (
        SparsityParams(full_layers=(0, 1), page_budget=4, recency_pages=1, policy="quest"),
        "shared",
    ),
}


@pytest.mark.parametrize(("sparsity", "mode"), OTHERS.values(), ids=OTHERS.keys())
def test_rows_that_have_no_kernel_go_along_on_the_other_path(two, sparsity, mode):
    other = two.add(RowKind(sparsity=sparsity, tokens=100, kept=81, mode=mode))
    served = two.add(RowKind(sparsity=DELTA, tokens=100, kept=81, mode="shared"))
    twins = [two.twin(other), two.twin(served)]
    for _ in range(2):
        wanted = two.by_row.step(twins)
        got = two.runner.step([other, served])
        assert [token.token_id for token in got] == [token.token_id for token in wanted]
    assert [row.generated for row in (other, served)] == [row.generated for row in twins]
    assert [row.attended for row in (other, served)] == [row.attended for row in twins]
    (batch,) = two.runner._batches.values()
    assert batch._inputs._rows == [served]


class Watcher:
    """Notes what it is shown of one row."""

    def __init__(self, row):
        self.row = row
        self.seen = []

    def watches(self, row):
        return row is self.row

    def layer_read(self, seen):
        self.seen.append((seen.row, seen.layer))


def test_a_watched_row_shows_what_it_reads_and_comes_back(two):
    rows = [two.add(RowKind(sparsity=DELTA, tokens=100)) for _ in range(2)]
    watcher = Watcher(rows[0])
    two.runner.step(rows)
    two.runner.step(rows, observer=watcher)
    assert watcher.seen == [(rows[0], layer) for layer in range(6)]
    twins = [two.twin(row) for row in rows]
    two.by_row.step(twins)
    two.by_row.step(twins)
    assert [row.generated for row in rows] == [row.generated for row in twins]
    two.step(rows)


def test_draws_are_those_of_the_other_path(two):
    sampling = SamplingParams(temperature=0.9, top_p=0.8, seed=5, logprobs=2)
    rows = [two.add(RowKind(sparsity=DELTA, tokens=90, sampling=sampling)) for _ in range(2)]
    rows.append(two.add(RowKind(sparsity=None, tokens=30)))
    twins = [two.twin(row) for row in rows]
    for _ in range(2):
        wanted = two.by_row.step(twins)
        got = two.runner.step(rows)
        assert [token.token_id for token in got] == [token.token_id for token in wanted]
        assert got[0].logprob == pytest.approx(wanted[0].logprob, abs=1e-3)


class NothingFits:
    """A grammar in which no token may come."""

    def allowed(self, vocab_size):
        return np.zeros(vocab_size, dtype=np.bool_)

    def accept(self, token_id):
        raise AssertionError(f"token {token_id} was not allowed")


def test_a_step_that_fails_leaves_rows_as_they_were(two):
    good, bad = (two.add(RowKind(sparsity=DELTA, tokens=80)) for _ in range(2))
    bad.matcher = NothingFits()
    with pytest.raises(InternalError, match="every token is ruled out"):
        two.runner.step([good, bad])
    assert (good.steps, bad.steps) == (0, 0)
    assert (good.generated, bad.generated) == ([9], [9])
    two.step([good])


def test_a_row_may_fill_the_longest_context(two):
    row = two.add(RowKind(sparsity=DELTA, tokens=MAX_TOKENS - 3))
    for _ in range(3):
        two.step([row])
    assert row.position == MAX_TOKENS
