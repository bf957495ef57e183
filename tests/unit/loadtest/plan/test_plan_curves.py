"""Times between measured points, and sums of decode steps in closed form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.plan.curves import Curve, DecodeTimes, PrefillTimes, StepCurve
from shared.errors import ConfigError
from tests.support.plan_parts import made_profile


def test_a_curve_stays_below_its_points_and_goes_on_above_them():
    curve = Curve([(10, 1.0), (20, 3.0), (40, 4.0)])
    assert [curve(x) for x in (0, 10, 15, 20, 30, 40, 60)] == [1, 1, 2, 3, 3.5, 4, 5]


def test_a_measured_fall_is_not_drawn_on():
    assert Curve([(10, 3.0), (20, 2.0)])(40) == 2.0


@given(
    context=st.integers(1, 900),
    steps=st.integers(1, 500),
    slopes=st.lists(st.floats(0, 1e-3), min_size=2, max_size=2),
)
def test_the_sum_of_steps_is_that_of_each(context: int, steps: int, slopes: list[float]):
    first, second = slopes
    knee = 0.01 + 499 * first
    curve = StepCurve(Curve([(1, 0.01), (500, knee), (1_000, knee + 500 * second)]))
    one_by_one = sum(curve.step(context + i) for i in range(steps))
    # A bend within half a step on either side is all that the closed form may miss.
    assert curve.total(context, steps) == pytest.approx(one_by_one, abs=2e-4)


@given(context=st.integers(1, 2_000), seconds=st.floats(0.001, 20))
def test_steps_until_is_the_first_that_reaches_the_time(context: int, seconds: float):
    curve = StepCurve(Curve([(1, 0.01), (1_000, 0.02)]))
    steps = curve.steps_until(context, seconds, most=10_000)
    assert curve.total(context, steps) >= seconds
    assert steps == 1 or curve.total(context, steps - 1) < seconds


def test_batches_and_keep_rates_between_the_measured_ones_are_lines():
    profile = made_profile(step_s=lambda _policy, batch, _context: 0.01 * batch)
    times = DecodeTimes(profile, "dense")
    assert [times.rows(batch).step(100) for batch in (1, 8, 36)] == pytest.approx(
        [0.01, 0.08, 0.36]
    )
    assert PrefillTimes(profile, 0.6).seconds(1_000) == pytest.approx(0.6, rel=1e-3)


def test_a_keep_rate_that_was_not_measured_is_refused():
    with pytest.raises(ConfigError, match=r"keep rate 0\.1 was not measured: the profile has 0\.2"):
        PrefillTimes(made_profile(), 0.1)
