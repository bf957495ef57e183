"""Measuring on the tiny model: every point is there, and the profile is one that can be read."""

import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.micro.plan_contention import ContentionWork, Role, time_contention
from loadtest.micro.transfer import MIB
from loadtest.plan.measure import MeasureSettings, Surroundings, _rule, load, measure
from loadtest.plan.profile import Contention, MeasuredProfile, Overheads
from loadtest.plan.profile_file import read_profile, write_profile
from shared.errors import ConfigError
from shared.types.methods import PruningParams


def settings(model: Path, **changes: object) -> MeasureSettings:
    given = {
        "model": str(model), "device": "cpu", "dtype": "float32", "threads": 0,
        "lengths": (96, 32), "keep_rates": (0.2,), "batches": (2, 64), "contexts": (24, 96),
        "repeats": 1, "max_batch": 4, "kv_bytes": 4 * MIB, "slab_bytes": MIB,
    } | changes  # fmt: skip
    return MeasureSettings(**given)  # type: ignore[arg-type]


def measured(chosen: MeasureSettings) -> MeasuredProfile:
    surroundings = Surroundings(
        transport="grpc",
        seconds_by_bytes={MIB: 0.002, 8 * MIB: 0.009},
        overheads=Overheads(first_token_s=0.001, handoff_s=0.002),
        contention=Contention(prefill=1.25),
    )
    return measure(
        load(chosen),
        chosen,
        surroundings,
        command="tandem plan measure",
        progress=lambda _line: None,
    )


def test_a_measured_profile_has_every_point_and_is_read_again(tiny_model_dir: Path, tmp_path: Path):
    profile = measured(settings(tiny_model_dir))
    assert {(p.tokens, p.keep_rate) for p in profile.prefill} == {
        (tokens, rate) for tokens in (32, 96) for rate in (0.2, 1.0)
    }
    assert {(p.policy, p.batch, p.context) for p in profile.decode} == {
        (policy, batch, context)
        for policy in ("dense", "delta")
        for batch in (1, 2, 4)
        for context in (24, 96)
    }
    assert all(len(p.ready) == 8 for p in profile.prefill)
    times = [p.seconds for p in profile.prefill] + [p.seconds for p in profile.decode]
    assert min(times) > 0
    assert profile.model.num_layers >= profile.model.whole_layers >= 1
    assert profile.origin["settings"]["max_batch"] == 4
    assert profile.contention == Contention(prefill=1.25, decode=1.0)
    write_profile(profile, tmp_path / "measured.json")
    again = read_profile(tmp_path / "measured.json")
    assert (again.prefill, again.decode) == (profile.prefill, profile.decode)


def test_a_cache_with_room_for_one_row_still_steps_the_whole_batch(tiny_model_dir: Path):
    roomy = measured(settings(tiny_model_dir))
    page_bytes = 16 * roomy.model.token_bytes * roomy.model.num_layers
    tight = measured(settings(tiny_model_dir, kv_bytes=8 * page_bytes))
    assert tight.limits.pages_front == 8  # 128 slots: one row of 96 and its steps
    assert {p.batch for p in tight.decode} == {1, 2, 4}
    with pytest.raises(ConfigError, match=r"a row of \d+ tokens does not fit"):
        measured(settings(tiny_model_dir, kv_bytes=6 * page_bytes))


def test_each_role_is_timed_beside_the_other_in_a_process_of_its_own(tiny_model_dir: Path):
    lines: list[str] = []
    work = ContentionWork(
        model=str(tiny_model_dir), device="cpu", dtype="float32", threads=1, tokens=64, batch=2,
        context=64, kv_bytes=4 * MIB, repeats=1,
    )  # fmt: skip
    loaded = load(settings(tiny_model_dir))
    found = time_contention(loaded, work, progress=lines.append)
    assert set(found) == {Role.PREFILL, Role.DECODE}
    assert all(1 <= ratio < 1_000 for ratio in found.values())
    assert lines[0].startswith("prefill beside decode: ")
    assert multiprocessing.active_children() == []


@given(
    length=st.integers(1, 10_000),
    rate=st.floats(0.01, 1.0),
    window=st.integers(1, 64),
    floor=st.integers(0, 1_000),
    bypass=st.integers(0, 2_000),
)
def test_the_rule_of_a_profile_keeps_as_many_tokens_as_the_service(
    length: int, rate: float, window: int, floor: int, bypass: int
):
    params = PruningParams(
        pruning_layer=1, observation_window=window, min_keep=floor, bypass_below=bypass
    )
    pruned = replace(params, keep_rate=rate).kept_count(length)
    assert _rule(params).kept(length, rate) == (length if length < bypass else pruned)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lengths": (32, 32)}, "one prompt length or one context"),
        ({"contexts": (0, 5)}, "are at least 1"),
        ({"keep_rates": (1.0,)}, "within 0 and 1"),
    ],
)
def test_settings_that_make_no_profile_are_refused(changes: dict[str, object], said: str):
    with pytest.raises(ConfigError, match=said):
        settings(Path("model"), **changes)
