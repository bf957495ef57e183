"""How far two answers can be compared."""

import pytest

from loadtest.pair.parity import LEVEL, ParityPlan, matching
from shared.types.sampling import SampledToken


def answer(*ids: int, margin: float = 1.0) -> list[SampledToken]:
    return [
        SampledToken(token_id=index, logprob=-0.5, top=((index, -0.5), (99, -0.5 - margin)))
        for index in ids
    ]


@pytest.mark.parametrize(
    ("given", "margin", "wanted"),
    [
        (answer(1, 2, 3), 1.0, (3, True)),
        (answer(1, 2, 4), 1.0, (2, False)),
        (answer(1, 2, 4), LEVEL / 2, (2, True)),
        (answer(1, 2), 1.0, (2, False)),
    ],
)
def test_answers_are_equal_up_to_a_level_step(
    given: list[SampledToken], margin: float, wanted: tuple[int, bool]
) -> None:
    assert matching(answer(1, 2, 3, margin=margin), given) == wanted


def test_prompts_fit_a_short_context() -> None:
    assert ParityPlan.within(1024, arms=("full",)).characters < 1024
    assert ParityPlan.within(100_000, arms=("full",)).characters == ParityPlan(arms=()).characters
