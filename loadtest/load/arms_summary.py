"""What the runs of several arms come to, as one JSON object."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from loadtest.load.compare import compared
from loadtest.load.histogram import Histogram
from loadtest.load.judge import Verdict

FORMAT = 1
POOLED = ("ttft", "tpot", "e2e")
"""Measures whose histograms are added up over the repeats of an arm."""
_SEVERITY = (
    Verdict.PASS,
    Verdict.MISSED,
    Verdict.SERVER_SATURATED,
    Verdict.CLIENT_SATURATED,
    Verdict.INCOMPLETE,
)
_OWN = ("out", "host", "seed", "overrides", "figures")
"""Settings in which the runs differ, or which say nothing about the load."""


def arms_summary(
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    titles: Mapping[str, str],
    order: Sequence[str],
    machine: Mapping[str, Any],
) -> dict[str, Any]:
    """Arms, their runs, pooled times, and their paired comparison; JSON-ready.

    Args:
        runs: summaries by arm, the base first, each in order of repeats.
        titles: of the arms.
        order: names of the runs as they were made.
        machine: command, commit and hardware.

    Raises:
        ConfigError: runs that cannot be compared.
    """
    flat = [run for each in runs.values() for run in each]
    settings = {key: value for key, value in flat[0]["settings"].items() if key not in _OWN}
    return {
        "format": FORMAT,
        "verdict": worst(Verdict(run["verdict"]) for run in flat),
        **machine,
        "server": flat[0]["server"],
        "one_server": len({run["server"]["fingerprint"] for run in flat}) == 1,
        "settings": settings,
        "order": list(order),
        "arms": {name: _arm(each, title=titles[name]) for name, each in runs.items()},
        "comparison": compared(runs, paired=True),
    }


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The one that says most against a set of runs."""
    return max(verdicts, key=_SEVERITY.index)


def _arm(runs: Sequence[Mapping[str, Any]], *, title: str) -> dict[str, Any]:
    return {
        "title": title,
        "host": runs[0]["settings"]["host"],
        "overrides": runs[0]["settings"]["overrides"],
        "runs": [
            {
                "seed": run["settings"]["seed"],
                **{key: run[key] for key in ("verdict", "goodput_per_s", "requests", "failures",
                                             "throughput", "lag", "stopped")},
            }
            for run in runs
        ],
        "failures": dict(sum((Counter(run["failures"]) for run in runs), Counter())),
        "classes": {name: _class(runs, name) for name in runs[0]["classes"]},
    }  # fmt: skip


def _class(runs: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    kinds = [run["classes"][name] for run in runs]
    counts = Counter[str]()
    for kind in kinds:
        counts.update(kind["work"])
    return {
        "slo": kinds[0]["slo"],
        **{measure: _pooled(kinds, measure).summary() for measure in POOLED},
        **work_shares(counts),
    }


def work_shares(work: Mapping[str, int]) -> dict[str, float | None]:
    """Shares of the work of full attention that a set of answers took; None where none was told."""
    return {
        "kept_share": _share(work["kept_tokens"], work["prompt_tokens"]),
        "attended_share": _share(work["attended"], work["dense"]),
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _pooled(kinds: Sequence[Mapping[str, Any]], measure: str) -> Histogram:
    pooled = Histogram()
    for kind in kinds:
        pooled.add(Histogram.from_json(kind[measure]["histogram"]))
    return pooled
