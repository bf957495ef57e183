"""Highest rates, best splits and smallest sizes, by simulations at rates and splits in turn."""

from collections import Counter
from dataclasses import dataclass, replace
from math import ceil, sqrt

from loadtest.plan.arms import Arm
from loadtest.plan.cluster import Cluster, GatewayRules, Split
from loadtest.plan.demand import Demand
from loadtest.plan.figures import Figures, figures_of
from loadtest.plan.fluid import Fluid, fluid_of
from loadtest.plan.profile import MeasuredProfile
from loadtest.plan.work import Costs, costs_of

SAMPLE = 2_000
"""Requests whose means tell where to begin."""

MIN_REQUESTS = 2_000
"""Requests in the window that is judged, at least: 100 above the 95th percentile."""

MOST_GPUS = 1_024
"""Largest cluster that is looked for."""

SCOUT_GPUS = 32
"""Larger clusters begin with what this many GPUs do; a split of it is as fine as a 32nd."""

_WARM_UP = 2.0
_WINDOW = 2.0
_WINDOW_OF_TTFT = 5
_SPREAD = (1.0, 0.85, 1.18, 0.7, 1.4)
_HALVINGS = 4
_BETTER = 1.02
_ENDED_SHARE = 0.98
_CARRIED = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One simulated split at one rate."""

    arm: Arm
    """What was pruned and read."""
    split: Split
    """Workers."""
    rate: float
    """Requests a second that were offered."""
    figures: Figures
    """What came of it."""
    held: bool
    """Enough requests met their bounds, and the load is one that the workers can carry."""
    prefill_use: float
    """Share of the prefill workers' time that was compute."""
    decode_use: float
    """Share of the decode workers' time with a step under way."""


class Planner:
    """Trials of one arm.

    Args:
        profile: measured times.
        demand: what is asked.
        arm: what is pruned and read.
        rules: of the gateway.
    """

    def __init__(
        self, profile: MeasuredProfile, demand: Demand, *, arm: Arm, rules: GatewayRules
    ) -> None:
        self.arm = arm
        self._profile = profile
        self._demand = demand
        self._rules = rules
        self._costs = costs_of(demand.take(SAMPLE), profile, arm)
        self.fluid: Fluid = fluid_of(self._costs, profile, demand.kinds)
        self._trials: dict[tuple[Split, float], Trial] = {}
        self._highest: dict[int, Trial | None] = {}

    @property
    def beyond_measured(self) -> tuple[float, float]:
        """Shares of the requests whose prefill and whose decode steps were not measured."""
        costs, count = self._costs, len(self._costs.works)
        return costs.beyond_prefill / count, costs.beyond_decode / count

    @property
    def idle_attainment(self) -> float:
        """Share, of the class that fares worst, that an idle cluster could serve in time."""
        own = self._profile.overheads.first_token_s
        offered: Counter[str] = Counter()
        in_time: Counter[str] = Counter()
        for work in self._costs.works[:SAMPLE]:
            kind = work.request.kind
            step = self._costs.decode.rows(1).step(work.slots + work.steps / 2)
            offered[kind.name] += 1
            kept = work.prefill_s + own <= kind.slo.ttft and step <= kind.slo.tpot
            in_time[kind.name] += kept and work.fits_context
        return min(in_time[name] / count for name, count in offered.items())

    @property
    def _hopeless(self) -> bool:
        return self.idle_attainment < self._demand.attainment

    def trial(self, split: Split, rate: float) -> Trial:
        """Simulates, once for each split and rate."""
        if (split, rate) not in self._trials:
            self._trials[split, rate] = self._simulated(split, rate)
        return self._trials[split, rate]

    def splits(self, gpus: int) -> list[Split]:
        """Splits to try, the one that the means point to first."""
        if gpus == 1:
            return [Split(prefill=1, decode=1, shared_device=True)]
        ideal = gpus * self.fluid.prefill_share
        wanted = [min(gpus - 1, max(1, round(ideal * factor))) for factor in _SPREAD]
        return [Split(prefill=p, decode=gpus - p) for p in dict.fromkeys(wanted)]

    def best_at(self, gpus: int, rate: float) -> Trial:
        """The split with the most goodput at a rate; the first that holds it ends the search."""
        best: Trial | None = None
        for split in self.splits(gpus):
            if self._most(split) < rate and best is not None:
                continue
            found = self.trial(split, rate)
            if best is None or found.figures.goodput_per_s > best.figures.goodput_per_s:
                best = found
            if found.held:
                return found
        assert best is not None, "every size has a split"
        return best

    def smallest(self, rate: float) -> tuple[int, Trial] | None:
        """The fewest GPUs that hold a rate, and how; None when `MOST_GPUS` do not."""
        if self._hopeless:
            return None
        least = ceil(rate * (self.fluid.prefill_s + self.fluid.decode_s) / _CARRIED)
        if least > MOST_GPUS:
            return None
        size, failed = least, least - 1
        while size <= MOST_GPUS and not self.best_at(size, rate).held:
            failed, size = size, max(size + 1, ceil(size * 1.15))
        if size > MOST_GPUS:
            if failed == MOST_GPUS or not self.best_at(MOST_GPUS, rate).held:
                return None
            size = MOST_GPUS
        while size - failed > 1:
            middle = (size + failed) // 2
            if self.best_at(middle, rate).held:
                size = middle
            else:
                failed = middle
        return size, self.best_at(size, rate)

    def highest(self, gpus: int) -> Trial | None:
        """The split with the highest rate that it holds; None when none holds any.

        Large clusters begin with what a small one held, by GPU, and climb or descend from there.
        """
        if self._hopeless:
            return None
        if gpus > SCOUT_GPUS:
            scout = self.highest(SCOUT_GPUS)
            return None if scout is None else self._scaled(scout, gpus)
        if gpus not in self._highest:
            self._highest[gpus] = self._halved(gpus)
        return self._highest[gpus]

    def _most(self, split: Split) -> float:
        """The highest rate that is tried.

        Nearer to what the workers do in the mean, queues take longer to settle than a trial lasts.
        """
        return _CARRIED * self.fluid.capacity(split)

    def _scaled(self, scout: Trial, gpus: int) -> Trial | None:
        prefill = min(gpus - 1, max(1, round(gpus * scout.split.prefill / scout.split.gpus)))
        split = Split(prefill=prefill, decode=gpus - prefill)
        rate, top = scout.rate * gpus / scout.split.gpus, self._most(split)
        best: Trial | None = None
        for factor in (1.0, 1.04, 1.08):
            found = self.trial(split, min(top, rate * factor))
            if not found.held:
                break
            best = found
        if best is None:
            lower = (self.trial(split, min(top, rate * factor)) for factor in (0.94, 0.85, 0.7))
            best = next((found for found in lower if found.held), None)
        return best

    def _halved(self, gpus: int) -> Trial | None:
        best: Trial | None = None
        for split in self.splits(gpus):
            low, high = best.rate * _BETTER if best else 0.0, self._most(split)
            if low and (low >= high or not self.trial(split, low).held):
                continue
            best = self.trial(split, low) if low else best
            for _ in range(_HALVINGS):
                rate = (low + high) / 2
                found = self.trial(split, rate)
                if found.held:
                    best, low = found, rate
                else:
                    high = rate
        return best

    def _simulated(self, split: Split, rate: float) -> Trial:
        residence = self.fluid.residence_s
        longest = max(kind.slo.ttft for kind in self._demand.kinds.values())
        window = max(_WINDOW * residence, _WINDOW_OF_TTFT * longest, MIN_REQUESTS / rate)
        count = ceil(rate * (_WARM_UP * residence + window)) + 1
        costs = self._costs_for(count)
        moments = self._demand.moments(count, rate)
        cluster = Cluster(
            self._profile,
            split=split,
            rules=self._rules,
            costs=costs,
            seed=self._demand.seed,
        )
        simulated = cluster.run(moments)
        figures = figures_of(
            simulated.outcomes,
            self._demand.kinds,
            begin_s=max(0.0, moments[-1] - window),
            end_s=moments[-1],
        )
        carried = rate <= self._most(split) and _keeps_up(figures, window)
        return Trial(
            arm=self.arm,
            split=split,
            rate=rate,
            figures=figures,
            held=carried and figures.attainment >= self._demand.attainment,
            prefill_use=simulated.prefill_use,
            decode_use=simulated.decode_use,
        )

    def _costs_for(self, count: int) -> Costs:
        if count > len(self._costs.works):
            self._costs = costs_of(self._demand.take(count), self._profile, self.arm)
        return replace(self._costs, works=self._costs.works[:count])


def _keeps_up(figures: Figures, window_s: float) -> bool:
    """Whether about as many requests ended as came, so that no queue grows unseen.

    In a steady state both numbers have the same mean; two deviations of chance are allowed.
    """
    ended = figures.throughput_per_s * window_s
    return ended >= _ENDED_SHARE * figures.offered - 2 * sqrt(figures.offered)
