"""What a traced row says it read, against another observer of the same steps."""

import pytest
import torch

from decode_service.engine.drift import DriftCheck, DriftWatch
from decode_service.engine.inspect import PageTrace as Inspected
from decode_service.engine.page_record import MAX_COLUMNS, MAX_STEPS, PageRecord
from decode_service.engine.page_trace import TracingRunner
from decode_service.engine.runner import DecodeRunner, StepObserver
from decode_service.engine.sequence import Sequence
from decode_service.sparsity.base import LayerRole, page_selection, slot_selection
from shared.kv.geometry import PAGE_SIZE
from shared.model.transformer import Transformer
from shared.types.methods import SparsityParams
from shared.types.sampling import SampledToken
from shared.types.trace import PageTrace
from tests.support.decode_rows import make_cache, make_prompt, make_runner, place
from tests.support.policies import POLICIES

DELTA = SparsityParams(full_layers=(0, 1, 3), page_budget=4, recency_pages=1)
SPARSE = (LayerRole.DELTA, LayerRole.SPARSE, LayerRole.SPARSE)


class Both:
    """A runner whose steps an inspection watches as well."""

    def __init__(self, inner: DecodeRunner | DriftWatch, row: Sequence) -> None:
        self._inner = inner
        self._row = row
        self.seen: list[Inspected] = []

    def step(
        self, rows: list[Sequence], *, observer: StepObserver | None = None
    ) -> list[SampledToken]:
        assert observer is not None
        inspected = Inspected(self._row)
        self.seen.append(inspected)
        return self._inner.step(rows, observer=_Pair(observer, inspected))


class _Pair:
    def __init__(self, *observers: StepObserver) -> None:
        self._observers = observers

    def watches(self, row: Sequence) -> bool:
        return True

    def layer_read(self, seen) -> None:
        for observer in self._observers:
            observer.layer_read(seen)


def traced_row(model: Transformer, params: SparsityParams | None, *, steps: int):
    prompt, _ = make_prompt(model, mode="layer", tokens=150, kept=95, seed=4)
    cache = make_cache(model, pages=128)
    row = place(model, cache, prompt, first_token=11, sparsity=params, traced=True)
    quiet = place(model, cache, prompt, first_token=11, sparsity=params)
    checks: list[DriftCheck] = []
    watch = DriftWatch(make_runner(model, cache), every=2, on_check=checks.append)
    both = Both(watch, row)
    runner = TracingRunner(both)
    for _ in range(steps):
        runner.step([quiet, row])
    assert quiet.record is None
    assert quiet.generated == row.generated
    assert row.record is not None
    trace = row.record.trace()
    assert trace is not None
    return row, trace, both.seen, checks


def columns_of(inspected: Inspected, layer: int, trace: PageTrace) -> set[int]:
    units = inspected.pages[layer]
    flat = [u for row in units for u in (row if isinstance(row, list) else [row])]
    return {unit * inspected.units[layer] // trace.column_slots for unit in flat}


@pytest.mark.parametrize("name", ["delta", "quest", "streaming", "h2o", "dense"])
def test_reads_are_those_that_an_inspection_sees(tiny_model: Transformer, name: str) -> None:
    params = POLICIES.get(name)
    row, trace, seen, _ = traced_row(tiny_model, params, steps=9)
    assert trace.policy == row.policy.name
    assert trace.total_steps == 9
    assert [step.step for step in trace.steps] == list(range(1, 10))
    assert [step.position for step in trace.steps] == list(range(150, 159))
    assert sum(step.attended for step in trace.steps) == row.attended
    assert sum(step.dense for step in trace.steps) == row.dense
    for step, inspected in zip(trace.steps, seen, strict=True):
        for watched, ranges in zip(trace.layers, step.read, strict=True):
            read = {column for start, end in ranges for column in range(start, end)}
            assert read == columns_of(inspected, watched.layer, trace)
            assert max(read) < trace.columns


def test_delta_layers_that_choose_are_named_and_drift_checks_go_on(
    tiny_model: Transformer,
) -> None:
    _, trace, seen, checks = traced_row(tiny_model, DELTA, steps=6)
    assert [list(step.refreshed) for step in trace.steps] == [i.refreshed for i in seen]
    assert len(checks) == 6  # two rows, every second step
    assert [each.role for each in trace.layers] == ["sparse"] * len(trace.layers)
    assert {each.layer for each in trace.layers} == {2, 4, 5}


def test_a_step_that_failed_is_told_once(tiny_model: Transformer) -> None:
    prompt, _ = make_prompt(tiny_model, mode="layer", tokens=60, kept=40, seed=4)
    cache = make_cache(tiny_model)
    row = place(tiny_model, cache, prompt, first_token=11, sparsity=DELTA, traced=True)
    inner = make_runner(tiny_model, cache)

    class Failing:
        def __init__(self) -> None:
            self.fail = True

        def step(self, rows, *, observer=None):
            inner.forward(rows, observer=observer)
            if self.fail:
                raise RuntimeError("once")
            return inner.step(rows, observer=observer)

    failing = Failing()
    runner = TracingRunner(failing)
    with pytest.raises(RuntimeError):
        runner.step([row])
    failing.fail = False
    runner.step([row])
    assert row.record is not None
    trace = row.record.trace()
    assert trace is not None
    assert [step.step for step in trace.steps] == [1]


def test_a_step_that_no_record_will_tell_is_not_watched(tiny_model: Transformer) -> None:
    prompt, _ = make_prompt(tiny_model, mode="layer", tokens=60, kept=40, seed=4)
    cache = make_cache(tiny_model)
    row = place(tiny_model, cache, prompt, first_token=11, sparsity=DELTA, traced=True)
    inner = make_runner(tiny_model, cache)
    watched: list[bool] = []

    class Listening:
        def step(self, rows, *, observer=None):
            watched.append(observer is not None)
            return inner.step(rows, observer=observer)

    runner = TracingRunner(Listening())
    runner.step([row])
    assert row.record is not None
    row.record._thin_out()  # every second step from here on
    for _ in range(4):
        runner.step([row])
    assert watched == [True, False, True, False, True]
    trace = row.record.trace()
    assert trace is not None
    assert [step.step for step in trace.steps] == [1, 3, 5]
    assert trace.total_steps == 5


def record(**changes: object) -> PageRecord:
    values: dict[str, object] = {
        "policy": "delta",
        "roles": SPARSE,
        "prompt_slots": (100, 60, 60),
        "max_tokens": 8,
    }
    return PageRecord(**(values | changes))  # type: ignore[arg-type]


def fed(made: PageRecord, steps: int) -> PageTrace:
    for number in range(steps):
        if made.begin():
            for layer in (1, 2):
                pages = page_selection(torch.tensor([[0, 2, 3]]), kv_length=60)
                made.layer_read(layer, pages, slots=60, planned=False)
        made.end(position=100 + number, attended=3, dense=9)
    trace = made.trace()
    assert trace is not None
    return trace


def test_long_answers_are_thinned_out_evenly():
    trace = fed(record(max_tokens=5000), 3 * MAX_STEPS)
    assert trace.stride == 4
    assert len(trace.steps) <= MAX_STEPS
    assert [step.step for step in trace.steps] == list(range(1, 3 * MAX_STEPS + 1, 4))
    assert trace.total_steps == 3 * MAX_STEPS


def test_ranges_are_bounded_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("decode_service.engine.page_record.MAX_RANGES", 50)
    trace = fed(record(), 100)
    assert sum(len(ranges) for step in trace.steps for ranges in step.read) <= 50
    assert trace.stride > 1


def test_columns_cover_the_longest_answer_of_a_long_prompt():
    trace = fed(record(prompt_slots=(100_000, 80_000, 80_000), max_tokens=1000), 1)
    assert trace.columns <= MAX_COLUMNS
    assert trace.columns * trace.column_slots >= 81_000
    assert trace.column_slots % PAGE_SIZE == 0


def test_single_slots_fall_into_columns():
    made = record()
    made.begin()
    for layer in (1, 2):
        made.layer_read(
            layer, slot_selection(torch.tensor([[0, 1, 40], [5, 41, 59]])), slots=3, planned=False
        )
    made.end(position=100, attended=6, dense=9)
    trace = made.trace()
    assert trace is not None
    assert trace.steps[0].read[0] == ((0, 1), (2, 4))


def test_nothing_was_read_before_the_first_step():
    assert record().trace() is None
