"""Histograms, arrivals, plans, prompts, lag and comparison of the load suite."""

import json
import statistics
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.load.__main__ import main
from loadtest.load.arrivals import Arrival, Stage, arrivals, parse_stages
from loadtest.load.compare import compared
from loadtest.load.histogram import Histogram
from loadtest.load.lag import lag_of
from loadtest.load.outcome import Outcome
from loadtest.load.plan import planned_requests
from loadtest.load.prompts import WORDS, PromptMaker, Word
from loadtest.load.settings import Api, LoadSettings, parse_slo
from loadtest.load.workloads import WORKLOADS, Profile, Sizes, classes_of
from loadtest.spread import percentile
from shared.errors import ConfigError

DURATIONS = st.floats(min_value=0, max_value=1e5)
WORD_TOKENS = tuple(
    Word(f" {word}", tuple(range(index, index + 1 + index % 3))) for index, word in enumerate(WORDS)
)


@given(st.lists(DURATIONS, min_size=1), st.sampled_from([0, 1, 50, 90, 95, 99, 99.9, 100]))
def test_a_percentile_is_that_of_the_values_within_a_thousandth(
    values: list[float], percent: float
) -> None:
    found = Histogram(values).percentile(percent)
    assert found == pytest.approx(percentile(values, percent), rel=1e-3, abs=1e-6)


@given(st.lists(DURATIONS), st.lists(DURATIONS))
def test_histograms_add_up_and_survive_json(first: list[float], second: list[float]) -> None:
    added = Histogram.from_json(Histogram(first).to_json())
    added.add(Histogram(second))
    whole = Histogram([*first, *second])
    assert len(added) == len(first) + len(second)
    assert added.to_json()["counts"] == whole.to_json()["counts"]
    assert added.to_json()["sum_s"] == pytest.approx(whole.to_json()["sum_s"])


def test_a_histogram_refuses_what_is_no_duration_and_has_nothing_of_nothing() -> None:
    for value in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="no duration"):
            Histogram([value])
    with pytest.raises(ValueError, match="empty"):
        Histogram().percentile(50)
    assert Histogram().summary()["p50_s"] is None


@given(st.integers(0, 1000), st.floats(0.5, 4))
def test_arrivals_repeat_by_seed_and_stay_in_their_stages(seed: int, variation: float) -> None:
    stages = [Stage(5, 4), Stage(20, 2)]
    found = arrivals(stages, variation=variation, seed=seed)
    assert found == arrivals(stages, variation=variation, seed=seed)
    assert found == sorted(found, key=lambda arrival: arrival.due_s)
    for arrival in found:
        low, high = [(0, 4), (4, 6)][arrival.stage]
        assert low <= arrival.due_s < high


@pytest.mark.parametrize("variation", [1.0, 3.0])
def test_arrivals_have_the_rate_and_the_variation(variation: float) -> None:
    found = arrivals([Stage(50, 800)], variation=variation, seed=7)
    gaps = [b.due_s - a.due_s for a, b in pairwise(found)]
    assert len(found) / 800 == pytest.approx(50, rel=0.05)
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(variation, rel=0.08)


@pytest.mark.parametrize("text", ["", "1", "1:2:3", "a:1", "0:1", "1:-1", "1:nan", "1:inf", "1:2,"])
def test_stages_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_stages(text)


def test_stages_are_read() -> None:
    assert parse_stages("1:30,2.5:10") == (Stage(1, 30), Stage(2.5, 10))


@given(st.integers(1, 10_000), st.integers(1, 10_000), st.integers(0, 2**32))
def test_sizes_stay_in_their_range(a: int, b: int, seed: int) -> None:
    sizes = Sizes(min(a, b), max(a, b))
    assert sizes.low <= sizes.draw(Random(seed)) <= sizes.high


@pytest.mark.parametrize("name", list(WORKLOADS))
@pytest.mark.parametrize("profile", list(Profile))
def test_a_plan_repeats_by_seed_and_has_its_shares(name: str, profile: Profile) -> None:
    shares = WORKLOADS[name].shares
    assert sum(shares.values()) == pytest.approx(1)
    found = list(islice(planned_requests(WORKLOADS[name], classes_of(profile), seed=3), 2000))
    again = islice(planned_requests(WORKLOADS[name], classes_of(profile), seed=3), 2000)
    other = islice(planned_requests(WORKLOADS[name], classes_of(profile), seed=4), 2000)
    assert found == list(again) != list(other)
    for kind, share in shares.items():
        assert sum(r.kind.name == kind for r in found) / 2000 == pytest.approx(share, abs=0.04)
    assert all(r.kind.prompt.low <= r.prompt_tokens <= r.kind.prompt.high for r in found)


def test_prompts_have_their_size_and_share_only_the_prefix() -> None:
    maker = PromptMaker(WORD_TOKENS, seed=5)
    plan = planned_requests(WORKLOADS["rag"], classes_of(Profile.CPU), seed=5)
    requests = [r for r in islice(plan, 40) if r.prompt_tokens > 600]
    prompts = [maker.make(request) for request in requests]
    for request, prompt in zip(requests, prompts, strict=True):
        assert len(prompt.token_ids) == request.prompt_tokens
        assert set(prompt.text.split()) <= set(WORDS)
        assert prompt == PromptMaker(WORD_TOKENS, seed=5).make(request)
    prefix = requests[0].kind.prefix_tokens
    assert len({tuple(prompt.token_ids[:prefix]) for prompt in prompts}) == 1
    assert len({tuple(p.token_ids[prefix : prefix + 30]) for p in prompts}) == len(prompts)


def test_a_prompt_shorter_than_its_salt_is_exact_too() -> None:
    plan = planned_requests(WORKLOADS["chat"], classes_of(Profile.CPU), seed=1)
    request = replace(next(plan), prompt_tokens=3)
    assert len(PromptMaker(WORD_TOKENS, seed=1).make(request).token_ids) == 3


def late(due_s: float, by_s: float) -> Outcome:
    return Outcome(index=0, kind="chat", stage=0, due_s=due_s, started_s=due_s + by_s)


def test_the_lag_that_counts_is_the_last_request_s_over_its_moment() -> None:
    found = lag_of([late(10.0, 0.4), late(1.0, 0.5), late(2.0, 0.0)], limit=0.05)
    assert found["share"] == pytest.approx(0.04)
    assert not found["client_saturated"]
    assert (found["p50_s"], found["max_s"]) == (pytest.approx(0.4), pytest.approx(0.5))
    assert lag_of([late(10.0, 0.6)], limit=0.05)["client_saturated"]


def test_bounds_are_read_and_a_gap_defaults_to_ten_tokens() -> None:
    name, bounds = parse_slo("rag:ttft=3,tpot=0.08")
    assert (name, bounds.ttft, bounds.tpot) == ("rag", 3, 0.08)
    assert bounds.gap == pytest.approx(0.8)
    assert parse_slo("chat:ttft=1,tpot=2,gap=3")[1].gap == 3
    for text in ("chat", "chat:ttft=1", "chat:ttft=1,tpot=x", "chat:ttft=0,tpot=1", "c:a=1,tpot=1"):
        with pytest.raises(ConfigError):
            parse_slo(text)


@pytest.mark.parametrize(
    "wrong",
    [
        {"workload": "unknown"},
        {"api": Api.GRPC},
        {"rate": 0.0},
        {"seconds": float("inf")},
        {"closed_users": -1},
        {"closed_users": 2, "stages": "1:1"},
        {"attainment": 1.5},
        {"stages": "fast"},
        {"slo": ("rag:ttft=1,tpot=1",)},
    ],
)
def test_settings_that_do_not_fit_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        LoadSettings(host="http://h", out=Path("o"), **wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"grpc": "h:1"},
        {"rate": 2.0, "stages": "1:1"},
        {"seconds": 2.0, "stages": "1:1"},
        {"rate": 2.0, "closed_users": 1},
        {"variation": 2.0, "closed_users": 1},
        {"max_lag": 1.0, "closed_users": 1},
        {"drain_s": 1.0, "closed_users": 1},
        {"keep_going": True, "closed_users": 1},
        {"max_in_flight": 8, "closed_users": 1},
        {"max_in_flight": 8, "keep_going": True},
        {"variation": 2.0, "workload": "trace", "trace": Path("t")},
        {"workload": "slow_reader", "slo": ("slow_reader:ttft=1,tpot=1",)},
    ],
)
def test_settings_that_would_do_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"would (change|judge) nothing"):
        LoadSettings(host="http://h", out=Path("o"), **wrong)


def run(goodput: float, ttft: float, *, rate: float = 1.0) -> dict[str, Any]:
    settings = LoadSettings(host="http://h", out=Path("o"), rate=rate).to_json()
    times = {"p50_s": ttft, "p95_s": 2 * ttft}
    empty = {"p50_s": None, "p95_s": None}
    kind = {"ttft": times, "tpot": empty, "itl_max": empty, "e2e": empty}
    return {
        "verdict": "pass",
        "settings": settings,
        "goodput_per_s": goodput,
        "requests": {"attainment": 1.0},
        "throughput": {"requests_per_s": goodput},
        "classes": {"chat": kind},
    }


def test_a_comparison_has_ratios_and_intervals_over_runs() -> None:
    slow = [run(1.0, 0.40), run(1.0, 0.44), run(1.0, 0.36)]
    fast = [run(2.0, 0.20), run(2.0, 0.22), run(2.0, 0.18)]
    found = compared({"full": slow, "pruned": fast}, seed=1)
    ratio = found["metrics"]["chat.ttft_p50_s"]["ratios"]["pruned"]
    assert ratio["ratio"] == pytest.approx(0.5)
    assert 0.40 < ratio["low"] < 0.5 < ratio["high"] < 0.62
    assert found["metrics"]["goodput_per_s"]["ratios"]["pruned"] == {
        "ratio": 2.0, "low": 2.0, "high": 2.0,
    }  # fmt: skip
    assert "chat.tpot_p50_s" not in found["metrics"]


def test_two_runs_have_no_interval_and_a_base_of_nothing_no_ratio() -> None:
    found = compared({"a": [run(0.0, 1.0)] * 2, "b": [run(1.0, 2.0)] * 2})
    assert found["metrics"]["chat.ttft_p50_s"]["ratios"]["b"] == {
        "ratio": 2.0, "low": None, "high": None,
    }  # fmt: skip
    assert found["metrics"]["goodput_per_s"]["ratios"]["b"]["ratio"] is None


def test_a_table_says_which_runs_say_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, verdict in (("a", "pass"), ("b", "client saturated")):
        (tmp_path / name).write_text(json.dumps(run(1.0, 1.0) | {"verdict": verdict}))
    assert main(["compare", f"full={tmp_path / 'a'}", f"pruned={tmp_path / 'b'}"]) == 0
    shown = capsys.readouterr().out
    assert "verdicts of full: pass\nverdicts of pruned: client saturated\n" in shown


def test_runs_of_other_loads_and_one_arm_are_not_compared() -> None:
    with pytest.raises(ConfigError, match=r"rate is 1\.0 and 2\.0"):
        compared({"a": [run(1, 1)], "b": [run(1, 1, rate=2.0)]})
    with pytest.raises(ConfigError, match="one arm"):
        compared({"a": [run(1, 1)]})
    with pytest.raises(ConfigError, match="a repeat lacks an arm"):
        compared({"a": [run(1, 1)] * 2, "b": [run(1, 1)]}, paired=True)


def test_what_a_repeat_does_to_both_arms_is_no_part_of_a_paired_interval() -> None:
    base = [run(1.0, ttft) for ttft in (0.2, 0.4, 0.8)]
    other = [run(1.0, ttft) for ttft in (0.1, 0.2, 0.4)]
    rows = [compared({"a": base, "b": other}, paired=paired, seed=3) for paired in (True, False)]
    pairs, loose = (row["metrics"]["chat.ttft_p50_s"]["ratios"]["b"] for row in rows)
    assert pairs["ratio"] == loose["ratio"] == pytest.approx(0.5)
    assert pairs["low"] == pytest.approx(0.5) == pairs["high"]
    assert loose["low"] < 0.4
    assert loose["high"] > 0.6


def test_an_arrival_names_its_stage() -> None:
    found = arrivals([Stage(100, 1), Stage(100, 1)], variation=1, seed=0)
    assert {arrival.stage for arrival in found} == {0, 1}
    assert isinstance(found[0], Arrival)


def test_the_documented_sizes_are_those_that_are_drawn() -> None:
    readme = (Path(__file__).resolve().parents[4] / "loadtest/README.md").read_text()
    assert all(f"| `{name}` |" in readme for name in WORKLOADS)
    for name in ("chat", "rag", "reasoning"):
        row = next(line for line in readme.splitlines() if line.startswith(f"| `{name}` |"))
        for profile, cell in zip((Profile.CPU, Profile.GPU), row.split(" | ")[2:], strict=True):
            kind = classes_of(profile)[name]
            sizes = [f"{s.low:,} to {s.high:,}" for s in (kind.prompt, kind.answer)]
            assert cell.removesuffix(" |") == ", ".join(sizes)
