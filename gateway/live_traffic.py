"""What passed through this gateway in the last minute, for the page: numbers only, bounded."""

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gateway.job import GenerationJob, RequestReport

WINDOW_S = 60.0
"""How far back latencies are looked at, in seconds."""

RATE_S = 5.0
"""How far back tokens are counted for their rate, in seconds."""

_MAX_SAMPLES = 2048
_MAX_FLOWS = 256
_SHOWN = 12
_TWENTIETHS = 20


@dataclass(slots=True)
class _Flow:
    transport: str
    handoffs: int = 0
    kv_bytes: int = 0
    transfer_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Done:
    at: float
    phases_s: dict[str, float]
    shown: dict[str, object]


class LiveTraffic:
    """An observer that remembers the last minute.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ttfts: deque[tuple[float, float]] = deque(maxlen=_MAX_SAMPLES)
        self._tokens: deque[tuple[float, int]] = deque(maxlen=_MAX_SAMPLES)
        self._done: deque[_Done] = deque(maxlen=_MAX_SAMPLES)
        self._flows: dict[tuple[str, str], _Flow] = {}

    def first_token(self, _job: GenerationJob, /, *, seconds: float) -> None:
        """Notes a time to first token."""
        now = self._clock()
        self._ttfts.append((now, seconds))
        self._count(now, 1)

    def more_tokens(self, _job: GenerationJob, /, *, gap_s: float, count: int) -> None:  # noqa: ARG002
        """Counts tokens."""
        self._count(self._clock(), count)

    def finished(
        self, job: GenerationJob, report: RequestReport, *, completion_tokens: int
    ) -> None:
        """Notes a complete answer and the KV that moved for it."""
        shown: dict[str, object] = {
            "request_id": job.request_id,
            "endpoint": job.endpoint,
            "prompt_tokens": report.prompt_tokens,
            "kept_tokens": report.kept_tokens,
            "completion_tokens": completion_tokens,
            "ttft_ms": round(report.ttft_s * 1000, 3),
            "tokens_per_s": round(report.tokens_per_s, 3),
            "phases_ms": {name: round(s * 1000, 3) for name, s in report.phases_s.items()},
            "transport": report.transport,
            "route": report.route,
        }
        self._done.append(_Done(self._clock(), dict(report.phases_s), shown))
        if report.kv_bytes:
            self._note_flow(report)

    def retried(self, reason: str) -> None:
        """A retry shows up in the request's own waterfall."""

    def disconnected(self, phase: str) -> None:
        """A client that left has no figures."""

    def answered(self, *, endpoint: str, code: str, outcome: str, seconds: float) -> None:
        """Outcomes are the metrics' business."""

    def rejected(self, reason: str) -> None:
        """Refusals are the metrics' business."""

    def snapshot(self) -> dict[str, object]:
        """Latencies, rate, flows and the last requests; durations in milliseconds."""
        since = self._clock() - WINDOW_S
        ttfts = [seconds for at, seconds in self._ttfts if at >= since]
        done = [entry for entry in self._done if entry.at >= since]
        names = dict.fromkeys(name for entry in done for name in entry.phases_s)
        return {
            "window_s": WINDOW_S,
            "tokens_per_s": round(self._rate(), 2),
            "requests": len(done),
            "ttft_ms": _spread(ttfts),
            "phases_ms": {
                name: _spread([e.phases_s[name] for e in done if name in e.phases_s])
                for name in names
            },
            "recent": [entry.shown for entry in _last(self._done, _SHOWN)],
        }

    def flows(self) -> list[dict[str, object]]:
        """KV that moved between each pair of workers since this gateway started."""
        return [
            {
                "prefill": prefill,
                "decode": decode,
                "transport": flow.transport,
                "handoffs": flow.handoffs,
                "kv_bytes": flow.kv_bytes,
                "transfer_ms": round(flow.transfer_s * 1000, 3),
            }
            for (prefill, decode), flow in sorted(self._flows.items())
        ]

    def _count(self, now: float, count: int) -> None:
        second = float(int(now))
        if self._tokens and self._tokens[-1][0] == second:
            count += self._tokens.pop()[1]
        self._tokens.append((second, count))

    def _rate(self) -> float:
        since = self._clock() - RATE_S
        return sum(count for at, count in self._tokens if at >= since) / RATE_S

    def _note_flow(self, report: RequestReport) -> None:
        answered = report.tries[-1]
        pair = (answered.prefill, answered.decode)
        # Moved to the end: the pairs that went quiet longest ago make room.
        flow = self._flows.pop(pair, None) or _Flow(report.transport)
        self._flows[pair] = flow
        flow.transport = report.transport
        flow.handoffs += 1
        flow.kv_bytes += report.kv_bytes
        flow.transfer_s += report.phases_s.get("transfer", 0.0)
        while len(self._flows) > _MAX_FLOWS:
            self._flows.pop(next(iter(self._flows)))


def _spread(seconds: Sequence[float]) -> dict[str, float | int | None]:
    """Median and 95th percentile in milliseconds, and how many there were."""
    if not seconds:
        return {"p50": None, "p95": None, "count": 0}
    cuts = (
        statistics.quantiles(seconds, n=_TWENTIETHS, method="inclusive")
        if len(seconds) > 1
        else [seconds[0]] * (_TWENTIETHS - 1)
    )
    return {
        "p50": round(statistics.median(seconds) * 1000, 3),
        "p95": round(cuts[-1] * 1000, 3),
        "count": len(seconds),
    }


def _last(entries: Iterable[_Done], count: int) -> list[_Done]:
    """The newest first."""
    return list(entries)[-count:][::-1]
