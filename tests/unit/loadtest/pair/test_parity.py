"""How far two answers can be compared."""

import pytest

from loadtest.pair.agreement import LEVEL, Match, compare, matching
from loadtest.pair.parity import Answer, ParityPlan
from shared.types.sampling import SampledToken

FLOAT32 = LEVEL["float32"]


def answer(*ids: int, margin: float = 1.0, second: int = 99) -> list[SampledToken]:
    return [
        SampledToken(token_id=index, logprob=-0.5, top=((index, -0.5), (second, -0.5 - margin)))
        for index in ids
    ]


@pytest.mark.parametrize(
    ("given", "margin", "wanted"),
    [
        (answer(1, 2, 3), 1.0, (3, True)),
        (answer(1, 2, 4), 1.0, (2, False)),
        (answer(1, 2, 4), FLOAT32 / 2, (2, True)),
        (answer(1, 2), 1.0, (2, False)),
        (answer(1, 2, 5), FLOAT32 / 2, (2, False)),
    ],
    ids=["the same", "another", "level", "shorter", "no candidate, though two others are level"],
)
def test_answers_are_equal_up_to_a_level_step(
    given: list[SampledToken], margin: float, wanted: tuple[int, bool]
) -> None:
    match = matching(answer(1, 2, 3, margin=margin, second=4), given, level=FLOAT32)
    assert (match.compared, match.equal) == wanted


def test_how_far_apart_is_told() -> None:
    right = answer(1, 2, 3, margin=0.25, second=4)
    off = [SampledToken(token_id=1, logprob=-0.75), *answer(4, 3)]
    assert matching(right, off, level=0.5) == Match(compared=1, equal=True, gap=0.25, drift=0.25)
    assert not matching(right, off, level=0.125).equal
    assert matching(right, answer(1, 7, 3), level=0.5) == Match(
        compared=1, equal=False, gap=None, drift=0.0
    )


def given(arm: str, *ids: int, kept: frozenset[int] | None = None) -> Answer:
    return Answer(
        arm=arm, topic="t", prompt_tokens=40, tokens=answer(*ids), kept=kept, transport="nixl"
    )


def test_arms_are_summed_up() -> None:
    wanted = [
        given("full", 1, 2),
        given("claa10", 1, 2, kept=frozenset({0, 1, 2, 3})),
        given("claa10", 1, 2, kept=frozenset({0, 1})),
    ]
    others = [
        given("full", 1, 2),
        given("claa10", 1, 2, kept=frozenset({0, 1, 2, 9})),
        given("claa10", 1, 7, kept=frozenset({0, 1})),
    ]
    found = compare(wanted, others, level=FLOAT32)
    assert not found["equal"]
    full, pruned = found["arms"]["full"], found["arms"]["claa10"]
    assert full["equal"]
    assert (full["kept_tokens"], full["kept_alike"], full["differences"]) == ([], None, [])
    assert (pruned["answers"], pruned["steps"], pruned["steps_compared"]) == (2, 4, 3)
    assert (pruned["kept_tokens"], pruned["kept_alike"]) == ([4, 2], 0.75)
    assert [row["compared"] for row in pruned["differences"]] == [1]
    assert compare(wanted, wanted, level=FLOAT32)["equal"]


def test_prompts_fit_a_short_context_and_grow() -> None:
    assert ParityPlan.within(1024, arms=("full",)).characters < 1024
    usual = ParityPlan(arms=("full", "delta"))
    assert ParityPlan.within(100_000, arms=("full",)).characters == usual.characters
    lengths = [len(text) for text in usual.prompts().values()]
    assert lengths == sorted(lengths)
    assert lengths[-1] == usual.characters, "no chapter is shorter"
    assert usual.answers == 2 * len(lengths)
