"""Metrics and the one summary line of each prompt."""

import structlog

from prefill_service.engine.compute import Computed
from prefill_service.engine.engine import EngineLoad
from prefill_service.engine.job import Failed, PrefillJob, Sealed
from shared.telemetry.metrics import HealthMetrics, PrefillMetrics
from shared.transport.memory_choice import MemoryChoice, note_memory

_log = structlog.get_logger(__name__)


class MetricsRecorder:
    """Feeds the role's metrics; the engine calls it on the loop.

    Args:
        metrics: the prefill group.
        health: the group of every role.
    """

    def __init__(self, metrics: PrefillMetrics, *, health: HealthMetrics) -> None:
        self._metrics = metrics
        self._health = health
        self._expired = 0
        self._quarantines = 0

    def serves(self, *, role: str, model: str, version: str, config: str) -> None:
        """Says what runs here, and with which settings, once it is known."""
        self._health.build_info.labels(role=role, model=model, version=version).set(1)
        self._health.config_info.labels(role=role, config=config).set(1)

    def memory_chosen(self, choice: MemoryChoice) -> None:
        """It was decided which memory KV waits in."""
        note_memory(choice, self._health)

    def passed(self, prompts: int, tokens: int) -> None:
        """Counts a pass through the model."""
        self._metrics.batch_prompts.observe(prompts)
        self._metrics.batch_tokens.observe(tokens)

    def computed(self, computed: Computed) -> None:
        """Counts a prompt that went through the model."""
        plan = computed.plan
        kept = plan.summary.kept_tokens
        self._metrics.claa_tokens_in.inc(plan.prompt_tokens)
        self._metrics.claa_tokens_kept.inc(kept)
        self._metrics.claa_keep_rate.observe(kept / plan.prompt_tokens)
        if plan.summary.pruned:
            self._metrics.claa_select_seconds.observe(computed.select_seconds)

    def ended(self, job: PrefillJob, outcome: Sealed | Failed) -> None:
        """Writes the summary line."""
        line = {
            "handoff_id": job.key.handoff_id,
            "attempt": job.key.attempt,
            "prompt_tokens": job.tokens,
        }
        if isinstance(outcome, Failed):
            _log.info(
                "prompt failed", **line, code=outcome.error.error_code, error=outcome.error.message
            )
            return
        phases = {f"{name}_ms": round(seconds * 1000, 1) for name, seconds in outcome.phases}
        _log.info(
            "prompt sealed",
            **line,
            kept_tokens=outcome.kept_tokens,
            kv_bytes=outcome.kv_bytes,
            transport=outcome.transport,
            decode_worker=outcome.target.worker_id,
            **phases,
        )

    def grammar_compiled(self, seconds: float) -> None:
        """A grammar was compiled; called in the thread that did it."""
        self._metrics.grammar_compile_seconds.observe(seconds)

    def refresh(self, load: EngineLoad) -> None:
        """Sets the gauges that are read rather than counted."""
        self._metrics.queue_depth.set(load.queued_requests)
        self._metrics.running.set(load.running_requests)
        self._metrics.queued_prompt_tokens.set(load.queued_tokens)
        self._metrics.kv_held_bytes.set(load.held_bytes)
        self._health.engine_last_step_age_seconds.set(load.stalled_seconds)
        self._metrics.kv_lease_expired.inc(load.expired_holds - self._expired)
        self._expired = load.expired_holds
        self._metrics.kv_quarantined_bytes.set(load.quarantined_bytes)
        self._metrics.kv_quarantines.inc(load.quarantines - self._quarantines)
        self._quarantines = load.quarantines
