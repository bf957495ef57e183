"""A minute that slides: amounts in buckets of one second, and what they allow.

A bucket counts until its last moment is a minute old, so that no minute, wherever it begins, holds
more than the limit.
"""

from collections.abc import Mapping
from dataclasses import dataclass

WINDOW_S = 60
"""Length of the window, in seconds."""

Buckets = Mapping[int, int]
"""Amount by whole second of one clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a key stands with one limit."""

    limit: int
    """Allowed in any minute."""
    used: int
    """Used in the last minute."""
    reset_s: float
    """Seconds until nothing is used any more, if nothing is added."""
    wait_s: float
    """Seconds until what was asked for fits; 0 when it does, infinite when it never will."""

    @property
    def remaining(self) -> int:
        """What is left, never below 0."""
        return max(0, self.limit - self.used)


def first_counted(now_s: float) -> int:
    """The oldest second whose bucket still counts."""
    return int(now_s) - WINDOW_S


def standing(buckets: Buckets, *, now_s: float, limit: int, asked: int) -> Standing:
    """Judges an amount that is asked for at `now_s`."""
    counted = sorted((s, n) for s, n in buckets.items() if s >= first_counted(now_s) and n)
    used = max(0, sum(n for _, n in counted))
    newest = counted[-1][0] if counted else None
    return Standing(
        limit=limit,
        used=used,
        reset_s=0.0 if newest is None else _expiry(newest) - now_s,
        wait_s=_wait(counted, now_s=now_s, excess=used + asked - limit, hopeless=asked > limit),
    )


def _wait(counted: list[tuple[int, int]], *, now_s: float, excess: int, hopeless: bool) -> float:
    if excess <= 0:
        return 0.0
    if hopeless:
        return float("inf")
    for second, amount in counted:
        excess -= amount
        if excess <= 0:
            return _expiry(second) - now_s
    return float(WINDOW_S)


def _expiry(second: int) -> float:
    return float(second + WINDOW_S + 1)
