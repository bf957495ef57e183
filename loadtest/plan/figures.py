"""What a simulation or a run comes to: rates, percentiles, goodput."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadtest.load.judge import met
from loadtest.load.outcome import Outcome
from loadtest.load.workloads import RequestClass
from loadtest.spread import percentile


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of the requests that came within a window; times in seconds, None where there is none."""

    offered: int
    """Requests that came."""
    failures: Mapping[str, int]
    """Those that were turned away, by reason."""
    throughput_per_s: float
    """Requests a second that ended within the window."""
    answer_tokens_per_s: float
    """Their answer tokens."""
    goodput_per_s: float
    """Requests a second that met every bound, of those that came."""
    attainment: float
    """Share that met them, of the class that fared worst."""
    ttft_p50_s: float | None
    """Time to first token."""
    ttft_p95_s: float | None
    """The same."""
    tpot_p50_s: float | None
    """Mean time of a later token."""
    tpot_p95_s: float | None
    """The same."""


def figures_of(
    outcomes: Sequence[Outcome],
    kinds: Mapping[str, RequestClass],
    *,
    begin_s: float = 0.0,
    end_s: float,
) -> Figures:
    """Sums up.

    Args:
        outcomes: of all requests.
        kinds: classes with their bounds, by name.
        begin_s: requests before it warmed the cluster up.
        end_s: end of the window, above `begin_s`.
    """
    window = end_s - begin_s
    own = [o for o in outcomes if begin_s <= o.due_s <= end_s]
    ended = [
        o
        for o in outcomes
        if o.finished and o.e2e_s is not None and begin_s <= o.due_s + o.e2e_s <= end_s
    ]
    offered = Counter(o.kind for o in own)
    served = Counter(o.kind for o in own if met(o, kinds[o.kind]))
    ttft = sorted(o.ttft_s for o in own if o.ttft_s is not None)
    tpot = sorted(o.tpot_s for o in own if o.tpot_s is not None)
    return Figures(
        offered=len(own),
        failures=dict(Counter(o.failure for o in own if o.failure is not None)),
        throughput_per_s=len(ended) / window,
        answer_tokens_per_s=sum(o.answer_tokens for o in ended) / window,
        goodput_per_s=served.total() / window,
        attainment=min((served[kind] / count for kind, count in offered.items()), default=0.0),
        ttft_p50_s=percentile(ttft, 50) if ttft else None,
        ttft_p95_s=percentile(ttft, 95) if ttft else None,
        tpot_p50_s=percentile(tpot, 50) if tpot else None,
        tpot_p95_s=percentile(tpot, 95) if tpot else None,
    )
