"""How long a write between GPUs is slept over before anybody polls for it."""

import pytest

from shared.transport import nixl_patience
from shared.transport.nixl_patience import WritePatience

GIB = 1 << 30
FASTEST_S = GIB / 450e9
"""A GiB over NVLink 4."""


class Time:
    """A clock that sleeping moves."""

    def __init__(self) -> None:
        self.now = 10.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(nixl_patience, "time", clock)
    return clock


def test_it_sleeps_through_less_than_the_fastest_write_takes(time: Time) -> None:
    WritePatience(sleeps=True).rest(GIB, since=10.0)
    [seconds] = time.slept
    assert 0.5 * FASTEST_S < seconds < FASTEST_S


def test_a_write_has_the_link_only_when_the_one_before_is_over(time: Time) -> None:
    patience = WritePatience(sleeps=True)
    time.now = 11.0
    patience.done()
    patience.rest(GIB, since=10.0)
    [seconds] = time.slept
    assert 0.5 * FASTEST_S < seconds < FASTEST_S


def test_nobody_sleeps_over_short_or_late_writes_or_on_the_host(time: Time) -> None:
    WritePatience(sleeps=True).rest(2 << 20, since=10.0)
    WritePatience(sleeps=True).rest(GIB, since=9.0)
    WritePatience(sleeps=False).rest(GIB, since=10.0)
    assert time.slept == []
    assert WritePatience(sleeps=True).spins > WritePatience(sleeps=False).spins
