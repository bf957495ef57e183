"""A plan: every arm's smallest cluster for a rate, and what clusters of given sizes carry."""

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from loadtest.load.settings import LoadSettings
from loadtest.plan.arms import Arm, arms_of
from loadtest.plan.cluster import GatewayRules
from loadtest.plan.demand import Demand
from loadtest.plan.profile import MeasuredProfile
from loadtest.plan.search import MOST_GPUS, Planner, Trial
from shared.errors import ConfigError

DEFAULT_SIZES = tuple(2**power for power in range(11))
"""1 to 1,024 GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """What is planned.

    Raises:
        ConfigError: there is nothing to plan, or a number is out of range.
    """

    load: LoadSettings
    """Workload, sizes, bounds, attainment, variation of the gaps, trace and seed; its rate is not
    looked at."""
    rate: float | None
    """Requests a second for which the smallest cluster is looked for; None looks for none."""
    sizes: tuple[int, ...]
    """GPU counts for which the highest rate is looked for."""
    keep_rates: tuple[float, ...]
    """Of the pruned arms; none takes the profile's own."""
    rules: GatewayRules
    """Of the gateway."""
    jobs: int
    """Arms that are simulated side by side."""

    def __post_init__(self) -> None:
        if self.rate is not None and not 0 < self.rate < float("inf"):
            raise ConfigError(f"rate is {self.rate}: it must be above 0; raise it")
        if self.rate is None and not self.sizes:
            raise ConfigError("nothing is planned without a rate and without GPU counts; give one")
        if not all(1 <= size <= MOST_GPUS for size in self.sizes):
            raise ConfigError(f"GPU counts are 1 to {MOST_GPUS}; choose others")
        if self.jobs < 1:
            raise ConfigError(f"jobs is {self.jobs}: at least one arm is simulated at a time")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    profile: MeasuredProfile
    settings: PlanSettings
    arm: Arm


def plan(profile: MeasuredProfile, settings: PlanSettings) -> dict[str, Any]:
    """Simulates every arm.

    Returns:
        JSON: workload, bounds, attainment, rules, seed, and arms, each with its means, its
        `smallest` cluster for the rate and its `sizes`.

    Raises:
        ConfigError: the profile and the workload do not fit.
    """
    demand = Demand(settings.load)
    arms = arms_of(profile, settings.keep_rates)
    tasks = [_Task(profile=profile, settings=settings, arm=arm) for arm in arms]
    load = settings.load
    return {
        "model": profile.model.name,
        "workload": load.workload,
        "sizes_for": load.profile.value,
        "slo": {name: asdict(kind.slo) for name, kind in demand.kinds.items()},
        "attainment": load.attainment,
        "variation": load.variation,
        "trace": None if load.trace is None else str(load.trace),
        "seed": load.seed,
        "rate": settings.rate,
        "rules": asdict(settings.rules),
        "arms": _all(tasks, jobs=settings.jobs),
    }


def _all(tasks: Sequence[_Task], *, jobs: int) -> list[dict[str, Any]]:
    if min(jobs, len(tasks)) == 1:
        return [_arm_plan(task) for task in tasks]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=context) as pool:
        return list(pool.map(_arm_plan, tasks))


def _arm_plan(task: _Task) -> dict[str, Any]:
    settings = task.settings
    planner = Planner(task.profile, Demand(settings.load), arm=task.arm, rules=settings.rules)
    prefill, decode = planner.beyond_measured
    found: dict[str, Any] = {
        **asdict(task.arm),
        "means": asdict(planner.fluid) | {"prefill_share": planner.fluid.prefill_share},
        "idle_attainment": planner.idle_attainment,
        "beyond_measured": {"prefill": prefill, "decode": decode},
        "smallest": None if settings.rate is None else _smallest(planner, settings.rate),
        "sizes": [_row(size, planner.highest(size)) for size in settings.sizes],
    }
    return found


def _smallest(planner: Planner, rate: float) -> dict[str, Any]:
    """The fewest GPUs, and all splits of as many that were worth a try."""
    found = planner.smallest(rate)
    if found is None:
        return {"gpus": None, "split": None, "candidates": []}
    gpus, best = found
    candidates = [planner.trial(split, rate) for split in planner.splits(gpus)]
    return {
        **_row(gpus, best),
        "candidates": [_row(gpus, trial) for trial in candidates],
    }


def _row(gpus: int, trial: Trial | None) -> dict[str, Any]:
    """A trial, JSON-ready; without one the bounds cannot be met at any rate."""
    if trial is None:
        return {"gpus": gpus, "split": None}
    return {
        "gpus": gpus,
        "split": trial.split.text,
        "prefill": trial.split.prefill,
        "decode": trial.split.decode,
        "rate": trial.rate,
        "rate_per_gpu": trial.rate / gpus,
        "held": trial.held,
        **asdict(trial.figures),
        "prefill_use": trial.prefill_use,
        "decode_use": trial.decode_use,
    }
