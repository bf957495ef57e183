"""Simulates what a load run has recorded, and puts both results side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from loadtest.load.outcome import Outcome
from loadtest.load.overrides import Overrides
from loadtest.load.plan import PlannedRequest
from loadtest.load.results import REQUESTS, read_summary
from loadtest.load.schedule import plan_of, schedule_of
from loadtest.load.settings import Api, LoadSettings
from loadtest.load.workloads import Profile
from loadtest.plan.arms import Arm
from loadtest.plan.cluster import Cluster, GatewayRules, Split
from loadtest.plan.demand import refuse_unsimulated
from loadtest.plan.profile import MeasuredProfile
from loadtest.plan.work import costs_of
from loadtest.spread import percentile
from shared.errors import ConfigError

GATEWAY_QUEUE_TOKENS = 131_072
"""The gateway's default for `queue_tokens`."""

GATEWAY_QUEUE_REQUESTS = 1_024
"""The gateway's default for `queue_requests`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A load run's folder."""

    settings: LoadSettings
    """What was offered."""
    outcomes: list[Outcome]
    """What became of it, by start."""
    requests: list[PlannedRequest]
    """The same requests as they were planned, with the prompt sizes that the server counted."""


def read_run(folder: Path) -> RecordedRun:
    """The run of a folder.

    Raises:
        ConfigError: it is no complete run of an open loop.
    """
    summary = read_summary(folder)
    try:
        settings = _settings(summary["settings"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"the settings of {folder} cannot be read ({type(error).__name__}: {error}): another "
            "version has recorded the run; record it again"
        ) from error
    try:
        lines = (folder / REQUESTS).read_bytes().splitlines()
        outcomes = [Outcome(**orjson.loads(line)) for line in lines]
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{folder / REQUESTS} cannot be read ({error}); give the folder of a load run"
        ) from error
    refuse_unsimulated(settings.workload)
    if settings.closed_users or not outcomes or summary["verdict"] == "incomplete":
        raise ConfigError(
            f"{folder} is no complete open loop: its clients waited for answers, or it was broken "
            "off, so that its arrivals cannot be replayed; give another run"
        )
    outcomes.sort(key=lambda outcome: outcome.started_s)
    planned = _planned(settings, most=max(outcome.index for outcome in outcomes) + 1)
    return RecordedRun(
        settings=settings,
        outcomes=outcomes,
        requests=[_as_counted(planned[outcome.index], outcome) for outcome in outcomes],
    )


def validate(
    run: RecordedRun,
    profile: MeasuredProfile,
    *,
    split: Split,
    arm: Arm,
    balancer: str,
) -> dict[str, Any]:
    """Replays the arrivals.

    Returns:
        JSON: split, arm, workload, and `figures`: by name what was measured, what was predicted and
        the relative error, None where one of them is missing.

    Raises:
        ConfigError: the profile does not fit the run.
    """
    rules = GatewayRules(
        balancer=balancer,
        queue_tokens=GATEWAY_QUEUE_TOKENS,
        queue_requests=GATEWAY_QUEUE_REQUESTS,
    )
    cluster = Cluster(
        profile,
        split=split,
        rules=rules,
        costs=costs_of(run.requests, profile, arm),
        seed=run.settings.seed,
    )
    simulated = cluster.run([outcome.started_s for outcome in run.outcomes])
    measured, predicted = _figures(run.outcomes), _figures(simulated.outcomes)
    return {
        "split": split.text,
        "arm": arm.name,
        "workload": run.settings.workload,
        "requests": len(run.outcomes),
        "figures": {
            name: {
                "measured": measured[name],
                "predicted": predicted[name],
                "relative_error": _error(predicted[name], measured[name]),
            }
            for name in measured
        },
    }


def worst_error(result: dict[str, Any]) -> float | None:
    """The larger relative error of throughput and p95 TTFT; None when one is not known."""
    errors = [
        result["figures"][name]["relative_error"] for name in ("throughput_per_s", "ttft_p95_s")
    ]
    known = [abs(error) for error in errors if error is not None]
    return max(known) if len(known) == len(errors) else None


def _settings(found: dict[str, Any]) -> LoadSettings:
    trace = found["trace"]
    typed = {
        "out": Path(found["out"]),
        "api": Api(found["api"]),
        "profile": Profile(found["profile"]),
        "slo": tuple(found["slo"]),
        "trace": None if trace is None else Path(trace),
        "overrides": Overrides.from_json(found["overrides"]),
    }
    return LoadSettings(**(found | typed))


def _planned(settings: LoadSettings, *, most: int) -> list[PlannedRequest]:
    if settings.trace is not None:
        return [request for _, request in schedule_of(settings)]
    return list(islice(plan_of(settings), most))


def _as_counted(request: PlannedRequest, outcome: Outcome) -> PlannedRequest:
    """A chat template adds tokens to a prompt; the server's count is what was computed."""
    return PlannedRequest(
        index=request.index,
        kind=request.kind,
        prompt_tokens=outcome.prompt_tokens or request.prompt_tokens,
        answer_tokens=outcome.answer_tokens or request.answer_tokens,
    )


def _figures(outcomes: Sequence[Outcome]) -> dict[str, float | None]:
    """Over the first start to the last correct end or start, as a load run's summary."""
    finished = [o for o in outcomes if o.finished and o.e2e_s is not None]
    starts = [o.started_s for o in outcomes]
    ends = [o.started_s + (o.e2e_s or 0.0) for o in finished]
    window = max([*ends, *starts]) - min(starts)
    ttft = [o.ttft_s for o in outcomes if o.ttft_s is not None]
    tpot = [o.tpot_s for o in outcomes if o.tpot_s is not None]
    e2e = [o.e2e_s for o in finished if o.e2e_s is not None]
    tokens = sum(o.answer_tokens for o in finished)
    return {
        "throughput_per_s": len(finished) / window if window else None,
        "answer_tokens_per_s": tokens / window if window else None,
        "ttft_p50_s": _percentile(ttft, 50),
        "ttft_p95_s": _percentile(ttft, 95),
        "tpot_p50_s": _percentile(tpot, 50),
        "tpot_p95_s": _percentile(tpot, 95),
        "e2e_p50_s": _percentile(e2e, 50),
        "failed": float(sum(o.failure is not None for o in outcomes)),
    }


def _percentile(values: Sequence[float], percent: float) -> float | None:
    return percentile(values, percent) if values else None


def _error(predicted: float | None, measured: float | None) -> float | None:
    if predicted is None or not measured:
        return None
    return predicted / measured - 1
