"""The step that is enqueued before it was asked for: when it is, when it is dropped, and that it
changes no token."""

from dataclasses import replace

import pytest

from shared.types.methods import SparsityParams
from shared.types.sampling import SamplingParams
from tests.support.batch_rows import RowKind, TwoPaths
from tests.support.kernel_rows import DEVICE

pytestmark = pytest.mark.skipif(
    DEVICE.type == "cuda", reason="rows of these tests live on the CPU, where the interpreter runs"
)

DELTA = SparsityParams(full_layers=(0, 1, 3), page_budget=4, recency_pages=1)
LONG = RowKind(sparsity=DELTA, tokens=94, kept=70, mode="shared")


class Counted:
    """Counts the steps of a batch that are run."""

    def __init__(self, inner):
        self.inner = inner
        self.runs = 0

    def run(self):
        self.runs += 1
        return self.inner.run()


@pytest.fixture
def two(tiny_model):
    return TwoPaths(tiny_model)


@pytest.fixture
def counted(two, monkeypatch):
    made = []
    make = two.runner._make_step

    def make_counted(inputs, shape):
        made.append(Counted(make(inputs, shape)))
        return made[-1]

    monkeypatch.setattr(two.runner, "_make_step", make_counted)
    return lambda: sum(step.runs for step in made)


def both_step(two, rows):
    twins = [two.twin(row) for row in rows]
    wanted = two.by_row.step(twins)
    assert two.runner.step(rows) == wanted
    for row, twin in zip(rows, twins, strict=True):
        assert (row.generated, row.attended, row.refreshes, row.steps) == (
            twin.generated,
            twin.attended,
            twin.refreshes,
            twin.steps,
        )


def test_steps_over_page_edges_are_each_computed_once(two, counted):
    row = two.add(LONG)
    for step in range(1, 5):
        both_step(two, [row])
        assert counted() == step + 1, "the next one is under way"


def test_rows_that_come_and_go_drop_it(two, counted):
    rows = [two.add(replace(LONG, tokens=90 + number)) for number in range(2)]
    both_step(two, rows)
    two.release(rows.pop(0))
    both_step(two, rows)
    late = two.add(replace(LONG, tokens=80))
    both_step(two, [*rows, late])
    assert counted() == 6
    both_step(two, [*rows, late])
    assert counted() == 7


def test_none_is_begun_while_rows_are_about_to_join(two, counted):
    row = two.add(LONG)
    both_step(two, [row])
    assert counted() == 2
    with two.rows_to_come.expected(foretold=False):
        both_step(two, [row])
        assert counted() == 2, "what is under way is used"
        both_step(two, [row])
        assert counted() == 3
    late = two.add(replace(LONG, tokens=80))
    both_step(two, [row, late])
    assert counted() == 5, "nothing was dropped, and the next one is under way"


def test_a_row_that_was_changed_by_somebody_else_drops_it(two, counted):
    row = two.add(LONG)
    both_step(two, [row])
    twin = two.twin(row)
    for each in (row, twin):
        each.generated[-1] = 17
    both_step(two, [row])
    assert counted() == 4


def test_draws_wait_for_their_logits(two, counted):
    row = two.add(replace(LONG, sampling=SamplingParams(temperature=0.7, seed=3)))
    for step in range(1, 3):
        both_step(two, [row])
        assert counted() == step


def test_the_last_token_of_a_row_has_no_step_behind_it(two, counted):
    rows = [two.add(replace(LONG, tokens=90 + number)) for number in range(2)]
    rows[0].stop = replace(rows[0].stop, max_tokens=len(rows[0].generated) + 2)
    both_step(two, rows)
    assert counted() == 2
    both_step(two, rows)
    assert counted() == 2, "the next one would be of one row alone"
    two.release(rows.pop(0))
    both_step(two, rows)
    assert counted() == 4


def test_a_row_without_room_is_the_last_of_its_kind(two, counted):
    row = two.add(replace(LONG, tokens=95, kept=79, max_tokens=1))
    both_step(two, [row])  # slot 95 of 96, and 79 of 80
    assert counted() == 1
