"""The last requests, for operators: bounded in number and in bytes, without anybody's words."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import orjson
import structlog

from gateway.job import GenerationJob, RequestReport
from shared.errors import InternalError, TandemError
from shared.telemetry.spans import current_span, current_trace_id

_log = structlog.get_logger(__name__)

PromptText = Callable[[Sequence[int]], str]
"""Turns token ids back into text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """How much is remembered."""

    requests: int
    """Requests that are over; 0 keeps none."""
    nbytes: int
    """Bytes of their JSON."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Entry:
    job: GenerationJob
    handoff_id: str
    report: RequestReport
    trace_id: str
    started_at: str
    state: str = "running"
    error: TandemError | None = None


@dataclass(frozen=True, slots=True)
class _Kept:
    request_id: str
    summary: bytes
    details: bytes

    @property
    def nbytes(self) -> int:
        return len(self.summary) + len(self.details)


class RequestLog:
    """Remembers requests from their place in the queue on.

    Args:
        limits: how much.
        prompt_text: keeps prompts as text as well; None: nobody's words are kept.
        now: wall clock.
    """

    def __init__(
        self,
        limits: LogLimits,
        *,
        prompt_text: PromptText | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._limits = limits
        self._prompt_text = prompt_text
        self._now = now
        self._running: dict[str, _Entry] = {}
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._nbytes = 0

    @contextmanager
    def record(
        self, job: GenerationJob, *, handoff_id: str, report: RequestReport
    ) -> Iterator[None]:
        """Remembers what happens to a request while the block runs.

        Args:
            job: the request.
            handoff_id: its unique name.
            report: filled in meanwhile.
        """
        entry = _Entry(
            job=job,
            handoff_id=handoff_id,
            report=report,
            trace_id=current_trace_id(),
            started_at=self._now().isoformat(timespec="milliseconds"),
        )
        self._running[handoff_id] = entry
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            entry.state = "cancelled"
            raise
        except TandemError as error:
            _failed(entry, error)
            raise
        except Exception:
            _failed(entry, InternalError("an unforeseen exception; see the gateway's log"))
            raise
        else:
            entry.state = "ok"
        finally:
            del self._running[handoff_id]
            if entry.state != "ok":
                _tell(entry)
            self._keep(entry)

    def listing(self) -> bytes:
        """All summaries as JSON, the newest first."""
        running = [_encoded(_summary(entry)) for entry in self._running.values()]
        kept = [each.summary for each in self._kept.values()]
        head = orjson.dumps(
            {
                "limit": self._limits.requests,
                "limit_bytes": self._limits.nbytes,
                "bytes": self._nbytes,
            }
        )
        return head[:-1] + b',"requests":[' + b",".join([*kept, *running][::-1]) + b"]}"

    def find(self, name: str) -> bytes | None:
        """One request as JSON by its request id or handoff id; of several the newest."""
        for entry in reversed(self._running.values()):
            if name in {entry.job.request_id, entry.handoff_id}:
                return self._details(entry)
        for handoff_id, kept in reversed(self._kept.items()):
            if name in {kept.request_id, handoff_id}:
                return kept.details
        return None

    def _keep(self, entry: _Entry) -> None:
        if not self._limits.requests:
            return
        kept = _Kept(entry.job.request_id, _encoded(_summary(entry)), self._details(entry))
        if kept.nbytes > self._limits.nbytes:
            return
        self._kept[entry.handoff_id] = kept
        self._nbytes += kept.nbytes
        while len(self._kept) > self._limits.requests or self._nbytes > self._limits.nbytes:
            _, oldest = self._kept.popitem(last=False)
            self._nbytes -= oldest.nbytes

    def _details(self, entry: _Entry) -> bytes:
        report, error = entry.report, entry.error
        return _encoded(
            {
                **_summary(entry),
                "report": report.to_json(),
                "trace": report.trace().to_json(),
                "tries": [
                    {
                        "attempt": number,
                        "prefill": each.prefill,
                        "decode": each.decode,
                        "failed": each.failed or None,
                    }
                    for number, each in enumerate(report.tries, start=1)
                ],
                "error": error and {"code": error.error_code, "message": error.message},
                "prompt": self._prompt_text and self._prompt_text(entry.job.prompt_ids),
            }
        )


def _failed(entry: _Entry, error: TandemError) -> None:
    entry.state, entry.error = "error", error
    span = current_span()
    if span is not None:
        span.fail(error.error_code)


def _tell(entry: _Entry) -> None:
    """The summary line of a request without an answer; the recorder writes that of the others."""
    _log.info(
        "request ended early",
        request_id=entry.job.request_id,
        endpoint=entry.job.endpoint,
        state=entry.state,
        code=entry.error.error_code if entry.error is not None else "",
        prompt_tokens=len(entry.job.prompt_ids),
        **{name: value for name, value in entry.report.to_json().items() if name in _TOLD},
    )


_TOLD = frozenset({"ttft_ms", "phases_ms", "route"})


def _summary(entry: _Entry) -> dict[str, object]:
    job, report = entry.job, entry.report
    return {
        "request_id": job.request_id,
        "handoff_id": entry.handoff_id,
        "trace_id": entry.trace_id,
        "endpoint": job.endpoint,
        "model": job.model,
        "state": entry.state,
        "code": entry.error.error_code if entry.error is not None else "",
        "started_at": entry.started_at,
        "total_ms": round(report.timeline.total_s * 1000, 3),
        "ttft_ms": round(report.ttft_s * 1000, 3),
        "prompt_tokens": len(job.prompt_ids),
        "completion_tokens": report.completion_tokens,
        "attempts": len(report.tries),
        "traced": report.traced,
    }


def _encoded(value: dict[str, object]) -> bytes:
    return orjson.dumps(value)
