"""Which steps a batch makes, and when: with steps that only note their shape."""

import dataclasses

import pytest
import torch

from decode_service.engine.batched.batch import Batch
from decode_service.engine.batched.device_step import StepOutput
from decode_service.engine.batched.layer_tasks import BatchLayers
from decode_service.engine.batched.row_plan import plan_of
from decode_service.engine.batched.step_inputs import StepInputs
from decode_service.sparsity.planner import layer_roles
from shared.types.methods import SparsityParams
from tests.support.batch_rows import ShuffledCache
from tests.support.decode_rows import WHOLE, make_prompt, place

DELTA = SparsityParams(full_layers=(0, 1), page_budget=4, recency_pages=1)


@dataclasses.dataclass
class Noted:
    """A step that computes nothing."""

    rows: int

    def run(self) -> StepOutput:
        """Zeros."""
        return StepOutput(logits_BV=torch.zeros(self.rows, 512), best_2B=torch.zeros(2, self.rows))


class Notes:
    """A batch of 6 layers, its inputs, and the shapes that were made."""

    def __init__(self) -> None:
        self.made: list[tuple[int, int, int]] = []
        layers = BatchLayers(
            roles=layer_roles((0, 1), num_layers=6),
            classes=(0, 0, 1, 1, 1, 1),
            whole_layers=WHOLE,
        )
        self.inputs = StepInputs(layers, seats=3, max_tokens=9_000, device=torch.device("cpu"))
        self.batch = Batch(self.inputs, max_rows=3, max_tokens=9_000, make_step=self._make)

    def _make(self, inputs, shape):
        assert inputs is self.inputs
        self.made.append((shape.rows, shape.tokens, shape.choice))
        return Noted(shape.rows)


@pytest.fixture
def notes():
    return Notes()


def test_everything_may_be_made_at_the_start(notes):
    notes.batch.prepare(choice=0)
    notes.batch.prepare(choice=4)
    wanted = {
        (rows, tokens, choice)
        for rows in (1, 2, 3)
        for tokens in (4096, 8192, 9008)
        for choice in (0, 4)
    }
    assert set(notes.made) == wanted
    assert len(notes.made) == len(wanted)
    assert notes.made[0] == (3, 9008, 0), "the largest first: smaller ones then find its memory"


def test_an_empty_step_writes_nothing_and_reads_nothing(notes, tiny_model):
    cache = ShuffledCache(tiny_model, seed=1)
    row = seated(cache, tiny_model, tokens=100)
    notes.batch.compute([row], [plan_of(row)])
    notes.inputs.empty()
    for group in cache.pools:
        assert notes.inputs.write_slots(group, 3).tolist() == [-1, -1, -1]
        assert notes.inputs.tables(group, 3).lengths_B.tolist() == [0, 0, 0]


def seated(cache, model, *, tokens):
    prompt, _ = make_prompt(model, mode="identity", tokens=tokens, kept=0)
    return place(model, cache, prompt, first_token=9, sparsity=DELTA)


def test_one_step_a_shape(notes, tiny_model):
    cache = ShuffledCache(tiny_model, seed=1)
    row = seated(cache, tiny_model, tokens=100)
    for _ in range(2):
        notes.batch.compute([row], [plan_of(row)])
    other = seated(cache, tiny_model, tokens=30)
    for _ in range(2):
        notes.batch.compute([row, other], [plan_of(row), plan_of(other)])
    notes.batch.compute([other], [plan_of(other)])
    assert notes.made == [(1, 4096, 4), (2, 4096, 4), (1, 4096, 0)]


def test_an_empty_seat_is_left_by_a_row_that_ended(notes, tiny_model):
    cache = ShuffledCache(tiny_model, seed=1)
    rows = [seated(cache, tiny_model, tokens=20 + number) for number in range(2)]
    plans = [plan_of(row) for row in rows]
    notes.batch.compute(rows, plans)
    notes.batch.compute(rows[1:], plans[1:])
    (front, rest) = (notes.inputs.tables(group, 2) for group in cache.pools)
    assert front.lengths_B.tolist() == rest.lengths_B.tolist() == [22, 0]
    held = rows[1].prompt.pages.front.pages
    assert front.pages_BM[0, : len(held)].tolist() == list(held)
