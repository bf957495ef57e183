"""Measured times between the points that were measured: straight lines."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from loadtest.plan.profile import FULL, MeasuredProfile, PrefillPoint
from shared.errors import ConfigError


class Curve:
    """Piecewise linear; below its first point it stays, above its last one it goes on rising.

    Args:
        points: (x, y) with different x, two or more.
    """

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        ordered = sorted(points)
        self.xs = [x for x, _ in ordered]
        self.ys = [y for _, y in ordered]
        (x0, y0), (x1, y1) = ordered[-2:]
        # A measured fall is noise: a longer prompt does not take less.
        self.slope_beyond = max(0.0, (y1 - y0) / (x1 - x0))

    def __call__(self, x: float) -> float:
        """The value at x."""
        xs, ys = self.xs, self.ys
        if x <= xs[0]:
            return ys[0]
        if x >= xs[-1]:
            return ys[-1] + (x - xs[-1]) * self.slope_beyond
        i = bisect_right(xs, x)
        return ys[i - 1] + (ys[i] - ys[i - 1]) * (x - xs[i - 1]) / (xs[i] - xs[i - 1])


class StepCurve:
    """Time of decode steps of one batch size, by the mean context, which grows by one a step.

    Args:
        curve: seconds of a step by mean context.
    """

    def __init__(self, curve: Curve) -> None:
        self._curve = curve
        self._sums = [0.0]
        xs, ys = curve.xs, curve.ys
        for i in range(1, len(xs)):
            self._sums.append(self._sums[-1] + (xs[i] - xs[i - 1]) * (ys[i] + ys[i - 1]) / 2)

    def step(self, context: float) -> float:
        """Seconds of one step."""
        return self._curve(context)

    def total(self, context: float, steps: int) -> float:
        """Seconds of `steps` steps, the first one at `context`.

        Exact while no point of the curve lies among the contexts: the sum of a line's values is
        its integral over half a step more on either side.
        """
        return self._integral(context + steps - 0.5) - self._integral(context - 0.5)

    def steps_until(self, context: float, seconds: float, *, most: int) -> int:
        """The fewest steps, at least 1, that take `seconds` or longer; `most` at most."""
        low, high = 1, most
        while low < high:
            middle = (low + high) // 2
            if self.total(context, middle) >= seconds:
                high = middle
            else:
                low = middle + 1
        return low

    def _integral(self, x: float) -> float:
        xs, ys = self._curve.xs, self._curve.ys
        if x <= xs[0]:
            return (x - xs[0]) * ys[0]
        if x >= xs[-1]:
            beyond = x - xs[-1]
            return self._sums[-1] + beyond * (ys[-1] + beyond * self._curve.slope_beyond / 2)
        i = bisect_right(xs, x)
        return self._sums[i - 1] + (x - xs[i - 1]) * (ys[i - 1] + self._curve(x)) / 2


class DecodeTimes:
    """Steps of one policy: between measured batches, lines as well.

    Args:
        profile: has points of the policy.
        policy: name.
    """

    def __init__(self, profile: MeasuredProfile, policy: str) -> None:
        points = [point for point in profile.decode if point.policy == policy]
        if not points:
            raise ConfigError(
                f"the measured profile has no decode steps of policy {policy}: it was not "
                "measured; measure it or leave that arm out"
            )
        self._batches = sorted({point.batch for point in points})
        self._contexts = sorted({point.context for point in points})
        self._seconds = {(point.batch, point.context): point.seconds for point in points}
        self._made: dict[int, StepCurve] = {}

    @property
    def longest(self) -> int:
        """Largest measured context."""
        return self._contexts[-1]

    def rows(self, batch: int) -> StepCurve:
        """Steps of `batch` rows."""
        if batch not in self._made:
            i = bisect_left(self._batches, batch)
            high = self._batches[i]
            low = high if high == batch else self._batches[i - 1]
            share = 0.0 if high == low else (batch - low) / (high - low)
            curve = Curve(
                [
                    (c, (1 - share) * self._seconds[low, c] + share * self._seconds[high, c])
                    for c in self._contexts
                ]
            )
            self._made[batch] = StepCurve(curve)
        return self._made[batch]


class PrefillTimes:
    """Prefill of prompts at one keep rate; between measured rates, lines as well.

    Args:
        profile: measured points.
        keep_rate: within the measured rates.

    Raises:
        ConfigError: it is below the smallest measured rate.
    """

    def __init__(self, profile: MeasuredProfile, keep_rate: float) -> None:
        rates = profile.keep_rates
        if not rates[0] <= keep_rate <= FULL:
            raise ConfigError(
                f"keep rate {keep_rate:g} was not measured: the profile has {rates[0]:g} to 1; "
                "choose one in between or measure it"
            )
        i = bisect_left(rates, keep_rate)
        high = rates[i]
        low = high if high == keep_rate else rates[i - 1]
        share = 0.0 if high == low else (keep_rate - low) / (high - low)
        by_rate = {
            rate: sorted((p for p in profile.prefill if p.keep_rate == rate), key=_tokens)
            for rate in (low, high)
        }
        pairs = list(zip(by_rate[low], by_rate[high], strict=True))
        self._curve = Curve([(a.tokens, _mix(a.seconds, b.seconds, share)) for a, b in pairs])
        # When KV is ready differs little: that of the nearer measured rate stands for both.
        nearer = by_rate[low] if share <= 0.5 else by_rate[high]  # noqa: PLR2004  half way
        self._ready = [(point.tokens, point.ready) for point in nearer]

    @property
    def longest(self) -> int:
        """Most tokens measured."""
        return self._ready[-1][0]

    def seconds(self, tokens: int) -> float:
        """Compute time of a prompt."""
        return self._curve(tokens)

    def ready(self, tokens: int) -> tuple[float, ...]:
        """Shares of the compute time after which equal parts of the KV are final."""
        return min(self._ready, key=lambda each: abs(each[0] - tokens))[1]


def transfer_times(profile: MeasuredProfile) -> Curve:
    """Seconds of a transfer by its bytes."""
    return Curve([(point.nbytes, point.seconds) for point in profile.transfer])


def _tokens(point: PrefillPoint) -> int:
    return point.tokens


def _mix(low: float, high: float, share: float) -> float:
    return (1 - share) * low + share * high
