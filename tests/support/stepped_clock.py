"""A clock that moves when a test says so."""


class SteppedClock:
    """Seconds; callable like time.monotonic."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
