"""What a run comes to, as one JSON object."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from loadtest.load.histogram import Histogram
from loadtest.load.judge import Verdict, met, verdict
from loadtest.load.lag import lag_of
from loadtest.load.outcome import MEASURES, Outcome
from loadtest.load.record import Record
from loadtest.load.settings import LoadSettings
from loadtest.load.timeline import disturbance_of, timeline_of
from loadtest.load.turns import turns_of
from loadtest.load.workloads import RequestClass

FORMAT = 1


def summary_of(
    record: Record,
    settings: LoadSettings,
    *,
    server: Mapping[str, Any],
    machine: Mapping[str, Any],
) -> dict[str, Any]:
    """Counts, percentiles, throughput, goodput, failures and the verdict; JSON-ready.

    Args:
        record: of the run.
        settings: what was offered.
        server: its account of itself.
        machine: command, commit and hardware of the generator.
    """
    outcomes, kinds = record.outcomes, settings.classes
    classes = {
        name: _class_summary([o for o in outcomes if o.kind == name], kind)
        for name, kind in kinds.items()
    }
    lag = None
    if not settings.closed_users and outcomes:
        lag = lag_of(outcomes, limit=settings.max_lag)
    timeline = timeline_of(outcomes, kinds)
    return {
        "format": FORMAT,
        "verdict": verdict(
            [each["attainment"] for each in classes.values()],
            wanted=settings.attainment,
            saturated=lag is not None and lag["client_saturated"],
            complete=record.complete,
            stop=record.stop,
        ),
        **machine,
        "server": dict(server),
        "settings": settings.to_json(),
        "planned": record.planned,
        "stopped": None if record.stop is None else record.stop.to_json(),
        "lag": lag,
        "requests": _counts(outcomes, kinds),
        "failures": dict(Counter(o.failure for o in outcomes if o.failure is not None)),
        **_rates(outcomes, kinds),
        "classes": classes,
        "timeline": timeline,
        "disturbance": disturbance_of(timeline),
        "stages": [] if settings.closed_users or settings.trace else _stages(outcomes, settings),
    }


def _class_summary(outcomes: Sequence[Outcome], kind: RequestClass) -> dict[str, Any]:
    return {
        "slo": asdict(kind.slo) if kind.pause_s == 0 else None,
        **_counts(outcomes, {kind.name: kind}),
        "failures": dict(Counter(o.failure for o in outcomes if o.failure is not None)),
        **{measure: _histogram(outcomes, measure).summary() for measure in MEASURES},
        "turns": turns_of(outcomes),
        "work": _work(outcomes),
    }


def _work(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Sums over the requests whose server told what the pair did."""
    told = [o for o in outcomes if o.finished and o.kept_tokens]
    names = ("prompt_tokens", "kept_tokens", "attended", "dense")
    return {name: sum(getattr(outcome, name) for outcome in told) for name in names}


def _counts(outcomes: Sequence[Outcome], kinds: Mapping[str, RequestClass]) -> dict[str, Any]:
    """Requests that the client left on purpose count neither for nor against."""
    left = sum(o.left for o in outcomes)
    served = sum(met(o, kinds[o.kind]) for o in outcomes)
    judged = len(outcomes) - left
    return {
        "offered": len(outcomes),
        "finished": sum(o.finished for o in outcomes),
        "failed": sum(o.failure is not None for o in outcomes),
        "left": left,
        "met": served,
        "attainment": served / judged if judged else None,
    }


def _rates(outcomes: Sequence[Outcome], kinds: Mapping[str, RequestClass]) -> dict[str, Any]:
    """Over the time from the first start to the last correct end or start, whichever is later.

    A server that stops answering goes on being offered requests, and that time counts.
    """
    finished = [o for o in outcomes if o.finished]
    ends = [o.started_s + o.e2e_s for o in finished if o.e2e_s is not None]
    if not ends:
        return {"window_s": None, "throughput": None, "goodput_per_s": 0.0}
    starts = [o.started_s for o in outcomes]
    window = max(*ends, *starts) - min(starts)
    return {
        "window_s": window,
        "throughput": {
            "requests_per_s": len(finished) / window,
            "prompt_tokens_per_s": sum(o.prompt_tokens for o in finished) / window,
            "answer_tokens_per_s": sum(o.answer_tokens for o in finished) / window,
        },
        "goodput_per_s": sum(met(o, kinds[o.kind]) for o in finished) / window,
    }


def _stages(outcomes: Sequence[Outcome], settings: LoadSettings) -> list[dict[str, Any]]:
    rows = []
    for number, stage in enumerate(settings.all_stages):
        own = [outcome for outcome in outcomes if outcome.stage == number]
        counts = _counts(own, settings.classes)
        attainment = counts["attainment"]
        rows.append(
            {
                **asdict(stage),
                **counts,
                "held": attainment is not None and attainment >= settings.attainment,
                "ttft": _histogram(own, "ttft").summary(),
                "tpot": _histogram(own, "tpot").summary(),
            }
        )
    return rows


def _histogram(outcomes: Sequence[Outcome], measure: str) -> Histogram:
    values = [getattr(outcome, f"{measure}_s") for outcome in outcomes]
    return Histogram(value for value in values if value is not None)


def highest_rate_held(summary: Mapping[str, Any]) -> float | None:
    """The highest rate of a ramp whose stage was served in time; None without one."""
    rates = [stage["rate"] for stage in summary["stages"] if stage["held"]]
    return max(rates, default=None)


def exit_verdict(summary: Mapping[str, Any]) -> Verdict:
    """The verdict of a summary, from a file too."""
    return Verdict(summary["verdict"])


def stop_text(summary: Mapping[str, Any]) -> str:
    """Why and when a run was ended early."""
    stop, counts = summary["stopped"], summary["requests"]
    return (
        f"ended early after {stop['at_s']:.1f} s: {stop['reason']}. {counts['offered']} of "
        f"{summary['planned']} requests were offered; the figures are those of a run that did not "
        "settle. Offer less, or give --keep-going"
    )
