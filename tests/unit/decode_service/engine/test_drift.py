"""The drift watch and its alarm, around the engine's runner."""

import math

import pytest
import structlog
import torch

from decode_service.engine.drift import DriftCheck, DriftWatch
from decode_service.engine.drift_alarm import WARN_EVERY_S, DriftAlarm
from decode_service.engine.runner import LayerRead
from decode_service.engine.sequence import Sequence
from decode_service.sparsity.base import Selection
from shared.errors import InternalError
from shared.model.transformer import Transformer
from shared.types.methods import SparsityParams
from tests.support.decode_parts import HandClock
from tests.support.decode_rows import make_cache, make_prompt, make_runner, place, scatter_pages
from tests.support.policies import EVERYTHING, POLICIES


class Weighing:
    """What a check should say, by loops over every head and slot."""

    def __init__(self) -> None:
        self.masses: dict[int, float] = {}

    def layer_read(self, seen: LayerRead) -> None:
        selection = seen.read.selection
        if selection is not None:
            keys = seen.kv.keys().double()
            self.masses[seen.layer] = _mean_mass(seen.q_HD.double(), keys, selection)


def _mean_mass(q: torch.Tensor, keys: torch.Tensor, selection: Selection) -> float:
    total, rows = 0.0, selection.units_RU.tolist()
    for head in range(q.shape[0]):
        alpha = torch.softmax(
            keys[:, head * keys.shape[1] // q.shape[0]] @ q[head] / math.sqrt(q.shape[1]), dim=0
        ).tolist()
        units = rows[head * len(rows) // q.shape[0]]
        total += sum(a for slot, a in enumerate(alpha) if slot // selection.unit in units)
    return total / q.shape[0]


def watched(
    model: Transformer, params: SparsityParams | None, *, every: int, steps: int
) -> tuple[Sequence, list[DriftCheck]]:
    """A row after some steps under a watch, in scattered pages, and what the watch said."""
    prompt, _ = make_prompt(model, mode="layer", tokens=150, kept=95, seed=4)
    cache = make_cache(model, pages=128)
    for pool in cache.pools.values():
        scatter_pages(pool.pages)
    row = place(model, cache, prompt, first_token=11, sparsity=params)
    runner = make_runner(model, cache)
    checks: list[DriftCheck] = []
    watch = DriftWatch(runner, every=every, on_check=checks.append) if every else runner
    for _ in range(steps):
        watch.step([row])
    return row, checks


@pytest.mark.parametrize("name", ["delta", "delta by KV head", "quest", "tidal", "h2o"])
def test_a_check_weighs_every_layer_that_reads_a_choice(tiny_model: Transformer, name: str) -> None:
    prompt, _ = make_prompt(tiny_model, mode="layer", tokens=150, kept=95, seed=4)
    cache = make_cache(tiny_model)
    runner = make_runner(tiny_model, cache)
    row = place(tiny_model, cache, prompt, first_token=11, sparsity=POLICIES[name])
    runner.step([row])  # h2o chooses by what earlier steps saw
    wanted = Weighing()
    runner.forward([row], observer=wanted)
    checks: list[DriftCheck] = []
    DriftWatch(runner, every=1, on_check=checks.append).step([row])
    (check,) = checks
    assert check.handoff_id == row.key.handoff_id
    assert check.position == 151
    assert check.mean == pytest.approx(sum(wanted.masses.values()) / len(wanted.masses), abs=1e-5)
    assert check.least == pytest.approx(min(wanted.masses.values()), abs=1e-5)
    assert check.least == pytest.approx(wanted.masses[check.least_layer], abs=1e-5)
    assert 0 < check.least < check.mean < 1


@pytest.mark.parametrize("name", ["delta", "delta every third step", "h2o", "raas"])
def test_a_check_changes_no_token(tiny_model: Transformer, name: str) -> None:
    plain, none = watched(tiny_model, POLICIES[name], every=0, steps=40)
    checked, checks = watched(tiny_model, POLICIES[name], every=1, steps=40)
    assert not none
    assert checks
    assert checked.generated == plain.generated
    assert checked.attended == plain.attended


def test_every_nth_step_of_a_row_is_checked(tiny_model: Transformer) -> None:
    _, checks = watched(tiny_model, POLICIES["delta"], every=3, steps=10)
    assert [check.position for check in checks] == [152, 155, 158]


@pytest.mark.parametrize("name", ["dense", "within the budget"])
def test_rows_that_read_everything_are_not_checked(tiny_model: Transformer, name: str) -> None:
    params = SparsityParams(full_layers=(0, 1, 3), page_budget=EVERYTHING)
    _, checks = watched(tiny_model, None if name == "dense" else params, every=1, steps=4)
    assert not checks


def test_rows_of_a_batch_are_checked_at_their_own_steps(tiny_model: Transformer) -> None:
    prompt, _ = make_prompt(tiny_model, mode="shared", tokens=150, kept=95, seed=4)
    cache = make_cache(tiny_model, pages=128)
    rows = [
        place(tiny_model, cache, prompt, first_token=11, sparsity=POLICIES["delta"])
        for _ in range(2)
    ]
    checks: list[DriftCheck] = []
    watch = DriftWatch(make_runner(tiny_model, cache), every=2, on_check=checks.append)
    watch.step(rows[:1])
    watch.step(rows)
    watch.step(rows)
    names = [(check.handoff_id, check.position) for check in checks]
    assert names == [(rows[0].key.handoff_id, 151), (rows[1].key.handoff_id, 151)]


def test_a_failed_step_is_not_reported(tiny_model: Transformer) -> None:
    prompt, _ = make_prompt(tiny_model, mode="shared", tokens=150, kept=95, seed=4)
    cache = make_cache(tiny_model)
    row = place(tiny_model, cache, prompt, first_token=11, sparsity=POLICIES["delta"])
    other = place(tiny_model, cache, prompt, first_token=11, sparsity=POLICIES["delta"])
    checks: list[DriftCheck] = []
    watch = DriftWatch(make_runner(tiny_model, cache), every=1, on_check=checks.append)
    cache.pool_of(5).memory[:, :, other.prompt.pages.rest.table] = torch.nan
    with pytest.raises(InternalError, match="no token can be drawn"):
        watch.step([row, other])
    assert not checks
    watch.step([row])
    assert len(checks) == 1


def check_of(mean: float) -> DriftCheck:
    return DriftCheck(handoff_id="h", position=9, mean=mean, least=mean / 2, least_layer=3)


def test_an_alarm_warns_once_a_minute_and_counts_the_rest() -> None:
    clock = HandClock()
    alarm = DriftAlarm(level=0.8, clock=clock)
    with structlog.testing.capture_logs() as logs:
        assert not alarm.judge(check_of(0.8))
        assert [alarm.judge(check_of(0.79)) for _ in range(3)] == [True] * 3
        assert len(logs) == 1
        clock.now += WARN_EVERY_S
        alarm.judge(check_of(0.5))
    assert [(entry["log_level"], entry["unsaid"]) for entry in logs] == [
        ("warning", 0),
        ("warning", 2),
    ]
    assert logs[1]["mean_mass"] == 0.5
    assert logs[1]["least_layer"] == 3


def test_the_note_speaks_of_recent_checks_only() -> None:
    alarm = DriftAlarm(level=0.8, clock=HandClock())
    assert alarm.note == ""
    alarm.judge(check_of(0.9))
    assert alarm.note == ""
    alarm.judge(check_of(0.7))
    assert "less than 0.8 of the attention mass in 1 of the last 2 drift checks" in alarm.note
    for _ in range(100):
        alarm.judge(check_of(0.9))
    assert alarm.note == ""


def test_level_0_never_warns() -> None:
    alarm = DriftAlarm(level=0.0, clock=HandClock())
    assert not alarm.judge(check_of(0.0))
    assert alarm.note == ""
