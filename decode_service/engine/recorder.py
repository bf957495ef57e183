"""From what the worker does to its metrics; nothing else in the service counts."""

from decode_service.engine.drift import DriftCheck
from decode_service.engine.engine import StepReport
from decode_service.engine.status import TokenRate, WorkerLoad
from decode_service.engine.stream import Ending
from shared.errors import TandemError
from shared.kv.geometry import PAGE_SIZE
from shared.telemetry.metrics import DecodeMetrics, HandoffFailureMetrics, HealthMetrics
from shared.transport.memory_choice import MemoryChoice, note_memory


class MetricsRecorder:
    """Feeds the metrics of one decode worker; on the event loop.

    Args:
        decode: metrics of the decode service.
        transfer: of which only the failures are fed here: refused commits.
        health: metrics of every role.
        rate: recent tokens per second.
        num_layers: decoder layers, for means over layers.
    """

    def __init__(
        self,
        decode: DecodeMetrics,
        *,
        transfer: HandoffFailureMetrics,
        health: HealthMetrics,
        rate: TokenRate,
        num_layers: int,
    ) -> None:
        self._decode = decode
        self._transfer = transfer
        self._health = health
        self._rate = rate
        self._num_layers = num_layers
        self._expired = 0
        self._tokens_refused = 0

    def memory_chosen(self, choice: MemoryChoice) -> None:
        """It was decided which memory KV lands in."""
        note_memory(choice, self._health)

    def step_done(self, report: StepReport) -> None:
        """A step ended."""
        self._rate.add(report.tokens)
        self._decode.step_seconds.observe(report.seconds)
        self._decode.batch_size.observe(report.rows)
        self._decode.preemptions.inc(report.preempted)

    def generation_ended(self, ending: Ending) -> None:
        """A generation ended."""
        self._decode.delta_refresh.inc(ending.refreshes)
        if ending.dense and ending.generated_tokens:
            reads = ending.generated_tokens * self._num_layers
            self._decode.delta_pages_attended.observe(ending.attended / reads / PAGE_SIZE)
            self._decode.delta_page_ratio.observe(ending.attended / ending.dense)

    def drift_checked(self, check: DriftCheck, *, low: bool) -> None:
        """A step was compared with full attention; `low`: it fell below the alarm level."""
        self._decode.sparse_mass.labels("mean").observe(check.mean)
        self._decode.sparse_mass.labels("least").observe(check.least)
        self._decode.drift_checks.inc()
        if low:
            self._decode.drift_alarms.inc()

    def row_left_out(self, reason: str) -> None:
        """An answer began that the kernels leave to PyTorch."""
        self._decode.rows_by_torch.labels(reason).inc()

    def commit_behind(self, reason: str) -> None:
        """A commit copies what had landed in device memory, instead of comparing what was taken."""
        self._decode.commits_behind.labels(reason).inc()

    def commit_ended(self, *, error: TandemError | None) -> None:
        """A commit was adopted, or refused."""
        if error is not None:
            self._transfer.transfer_failures.labels(type(error).__name__).inc()

    def grammar_compiled(self, seconds: float) -> None:
        """A grammar was compiled; called in the thread that did it."""
        self._decode.grammar_compile_seconds.observe(seconds)

    def refresh(self, load: WorkerLoad, *, expired: int, tokens_refused: int) -> None:
        """Sets what is read rather than counted.

        Args:
            load: the present load.
            expired: handoffs that ended by their lease, since the start.
            tokens_refused: pushes and commits without the token of their grant, since the start.
        """
        self._decode.running.set(load.running)
        self._decode.waiting.set(load.waiting)
        self._decode.kv_pages_used.set(load.held_pages)
        self._decode.kv_pages_total.set(load.total_pages)
        self._decode.kv_page_tokens.set(PAGE_SIZE)
        self._decode.kv_utilization.set(load.kv_utilization)
        self._health.engine_last_step_age_seconds.set(load.stalled_seconds)
        self._decode.kv_lease_expired.inc(expired - self._expired)
        self._expired = expired
        self._decode.handoff_tokens_refused.inc(tokens_refused - self._tokens_refused)
        self._tokens_refused = tokens_refused
