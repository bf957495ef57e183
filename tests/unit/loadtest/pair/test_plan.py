"""Rounds of a plan: fair to arms and clients, warm-ups first, prompts that share nothing."""

from collections import Counter

import pytest

from loadtest.pair.plan import (
    ARMS,
    CLIENTS,
    GRPC,
    HTTP,
    Load,
    PairPlan,
    prompt_ids,
    rounds_of,
)
from shared.errors import ConfigError

PLAN = PairPlan(
    arms=("full", "claa10"),
    prompts=(100, 200),
    new_tokens=8,
    loads=(Load(at_once=1, rounds=4, warm_ups=1), Load(at_once=3, rounds=2, warm_ups=0)),
    short_rounds=2,
    short_tokens=3,
)


def test_every_cell_is_warmed_up_and_then_counted() -> None:
    rounds = list(rounds_of(PLAN))
    counted = Counter((r.prompt_tokens, r.at_once, r.short) for r in rounds if r.counted)
    assert counted == {
        (100, 1, False): 4, (100, 1, True): 2, (100, 3, False): 2,
        (200, 1, False): 4, (200, 1, True): 2, (200, 3, False): 2,
    }  # fmt: skip
    assert [r.counted for r in rounds if (r.prompt_tokens, r.at_once) == (100, 1)][:2] == [
        False,
        True,
    ]
    assert {(r.new_tokens, r.short) for r in rounds} == {(8, False), (3, True)}


def test_arms_go_both_ways_by_either_client() -> None:
    alone = [r for r in rounds_of(PLAN) if r.prompt_tokens == 100 and r.at_once == 1]
    whole = [r for r in alone if r.counted and not r.short]
    backwards = PLAN.arms[::-1]
    assert {(r.arms, r.client) for r in whole} == {
        (PLAN.arms, HTTP), (PLAN.arms, GRPC), (backwards, HTTP), (backwards, GRPC),
    }  # fmt: skip
    together = [r for r in rounds_of(PLAN) if r.at_once == 3]
    assert {r.client for r in together} == set(CLIENTS), "two rounds see both"


def test_prompts_are_of_the_length_and_their_own() -> None:
    first = prompt_ids(50, vocab_size=500, seed=1, number=0)
    assert len(first) == 50
    assert first == prompt_ids(50, vocab_size=500, seed=1, number=0)
    others = [prompt_ids(50, vocab_size=500, seed=s, number=n) for s, n in ((1, 1), (2, 0))]
    assert all(other[:8] != first[:8] for other in others)
    assert all(16 <= index < 500 for index in first)


def test_what_a_pair_must_hold() -> None:
    assert (PLAN.longest, PLAN.most_at_once) == (208, 3)
    assert tuple(ARMS) == PairPlan().arms


@pytest.mark.parametrize(
    "wrong",
    [
        {"arms": ("full", "quick")},
        {"arms": ("full", "full")},
        {"arms": ()},
        {"prompts": ()},
        {"prompts": (0,)},
        {"new_tokens": 1},
        {"short_tokens": 1},
        {"short_rounds": -1},
        {"loads": ()},
        {"loads": (Load(at_once=0, rounds=1, warm_ups=0),)},
        {"loads": (Load(at_once=1, rounds=0, warm_ups=0),)},
        {"loads": (Load(at_once=1, rounds=1, warm_ups=-1),)},
    ],
    ids=str,
)
def test_plans_that_cannot_be_run(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="give"):
        PairPlan(**wrong)  # type: ignore[arg-type]
