"""What volleys come to, by hand-made answers."""

from collections.abc import Mapping
from typing import Any

import pytest

from loadtest.pair.clients import Timed
from loadtest.pair.measure import Volley
from loadtest.pair.plan import Round
from loadtest.pair.summary import summarize


def timed(ttft_ms: float, *, engine_ms: float, transfer_ms: float = 1.0, tokens: int = 11) -> Timed:
    report = {
        "phases_ms": {"prefill": engine_ms, "transfer": transfer_ms},
        "kept_tokens": 7,
        "kv_bytes": 100,
        "transport": "nixl",
        "attended_ratio": 0.5,
    }
    first = ttft_ms / 1000
    return Timed(
        ttft_s=first, second_s=first + 0.002, seconds=first + 0.1, tokens=tokens, report=report
    )


def volley(
    arm: str,
    *answers: Timed,
    tokens: int = 10_000,
    client: str = "http",
    short: bool = False,
    wall_s: float = 2.0,
) -> Volley:
    turn = Round(
        prompt_tokens=tokens,
        at_once=len(answers),
        new_tokens=3 if short else 11,
        client=client,
        arms=("full", "claa10"),
        counted=True,
        short=short,
    )
    return Volley(turn=turn, arm=arm, wall_s=wall_s, answers=answers)


def limits(found: Mapping[str, Any]) -> dict[str, tuple[float, bool]]:
    return {
        each["limit"].split(",")[0]: (each["measured"], each["met"]) for each in found["limits"]
    }


def test_medians_ratios_and_limits() -> None:
    found = summarize(
        [
            volley("full", timed(200, engine_ms=196)),
            volley("claa10", timed(100, engine_ms=97)),
            volley("claa10", timed(120, engine_ms=113), client="grpc", short=True),
            volley("full", timed(200, engine_ms=199), client="grpc", short=True),
        ]
    )
    (cell,) = found["cells"]
    assert (cell["prompt_tokens"], cell["at_once"], cell["new_tokens"]) == (10_000, 1, 11)
    full, claa = cell["arms"]["full"], cell["arms"]["claa10"]
    assert claa["ttft_ms"] == pytest.approx({"median": 110, "min": 100, "max": 120})
    assert claa["ttft_ms_by_client"]["grpc"]["median"] == pytest.approx(120)
    assert claa["ttft_of_full"] == pytest.approx({"median": 0.55, "min": 0.5, "max": 0.6})
    assert claa["added_ttft_ms"] == pytest.approx({"median": 5, "min": 3, "max": 7})
    assert full["added_ttft_ms"]["median"] == pytest.approx(2.5)
    assert claa["exposed_share"]["median"] == pytest.approx((1 / 100 + 1 / 120) / 2)
    assert claa["second_token_ms"]["median"] == pytest.approx(2)
    assert claa["tokens_per_s"]["median"] == pytest.approx(100), "short answers have no speed"
    assert claa["tokens_per_s_in_all"]["median"] == pytest.approx(5.5)
    assert claa["transports"] == ["nixl"]
    assert {name: measured for name, (measured, _) in limits(found).items()} == pytest.approx(
        {
            "ms added to the engine's own first token": 5,
            "time to first token": 0.55,
            "transfer after the last computation over time to first token": (1 / 100 + 1 / 120) / 2,
        }
    )
    assert all(met for _, met in limits(found).values())


def test_several_at_once_are_one_wall_and_no_limit() -> None:
    found = summarize(
        [volley("full", timed(100, engine_ms=99), timed(300, engine_ms=99), wall_s=0.5)]
    )
    (cell,) = found["cells"]
    arm = cell["arms"]["full"]
    assert arm["requests"] == 2
    assert arm["ttft_ms"]["median"] == pytest.approx(200)
    assert arm["tokens_per_s_in_all"]["median"] == pytest.approx(44)
    assert arm["ttft_of_full"]["median"] == 1.0
    assert found["limits"] == []


def test_limits_are_missed_in_words() -> None:
    found = summarize(
        [
            volley("full", timed(100, engine_ms=90)),
            volley("claa10", timed(61, engine_ms=60, transfer_ms=3)),
        ]
    )
    assert [each["met"] for each in found["limits"]] == [False, True, False, False]


def test_each_arm_and_length_has_its_own_median_of_added_time() -> None:
    found = summarize(
        [
            volley("full", timed(100, engine_ms=96)),
            volley("full", timed(100, engine_ms=96), client="grpc", short=True),
            volley("full", timed(100, engine_ms=50), client="grpc", short=True),
            volley("claa10", timed(100, engine_ms=91), tokens=500),
            volley("full", timed(300, engine_ms=99), timed(500, engine_ms=99)),
        ]
    )
    added = {each["limit"]: each["measured"] for each in found["limits"]}
    assert added == pytest.approx(
        {
            "ms added to the engine's own first token, 10000 tokens, full": 4,
            "ms added to the engine's own first token, 500 tokens, CLAA 10 %": 9,
        }
    )


def test_other_lengths_and_arms_have_the_first_limit_alone() -> None:
    found = summarize([volley("claa10", timed(100, engine_ms=99), tokens=500)])
    assert list(limits(found)) == ["ms added to the engine's own first token"]
    assert found["cells"][0]["arms"]["claa10"]["ttft_of_full"] is None
