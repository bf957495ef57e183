"""Every metric name in one file (prefix `tandem_`; seconds, bytes, tokens; bounded labels only).

Each role builds the groups that it feeds on a registry of its own; nothing is global. Labels never
hold request ids, users, paths or prompt text.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from shared.telemetry.buckets import (
    COUNT_BUCKETS,
    DURATION_BUCKETS,
    GBPS_BUCKETS,
    MASS_BUCKETS,
    PROMPT_BUCKETS,
    SHARE_BUCKETS,
    STEP_BUCKETS,
    TOKEN_BUCKETS,
    TTFT_BUCKETS,
)


class BuildMetrics:
    """Fed by every role."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.build_info = Gauge(
            "tandem_build_info", "Always 1", ["role", "model", "version"], registry=registry
        )
        self.config_info = Gauge(
            "tandem_config_info",
            "Always 1; `config` differs where settings other than names and ports differ",
            ["role", "config"],
            registry=registry,
        )


class HealthMetrics(BuildMetrics):
    """Fed by the roles that have an engine."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.engine_last_step_age_seconds = Gauge(
            "tandem_engine_last_step_age_seconds",
            "Seconds since the engine finished a unit of work while it had some; 0 when idle",
            registry=registry,
        )
        self.kv_memory_fallback = Gauge(
            "tandem_kv_memory_fallback",
            "1 where the model computes on a GPU and KV is handed over in host memory all the same",
            ["reason"],
            registry=registry,
        )


class GrammarMetrics:
    """Fed by every role: the gateway refuses what does not compile, the others sample by it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.grammar_compile_seconds = Histogram(
            "tandem_grammar_compile_seconds",
            "Compilation of one grammar that was not remembered",
            buckets=STEP_BUCKETS,
            registry=registry,
        )


class GatewayMetrics(GrammarMetrics):
    """Fed by the gateway: what users feel."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.requests = Counter(
            "tandem_requests",
            "Finished requests",
            ["endpoint", "code", "outcome"],
            registry=registry,
        )
        self._declare_latencies(registry)
        self._declare_volumes(registry)
        self.disconnects = Counter(
            "tandem_disconnects", "Clients that left early", ["phase"], registry=registry
        )
        self.retries = Counter(
            "tandem_retries", "Attempts after the first", ["reason"], registry=registry
        )
        self.retries_denied = Counter(
            "tandem_retries_denied", "Retries that the retry budget forbade", registry=registry
        )
        self.replays = Counter(
            "tandem_replays",
            "Answers that lost their decode worker after tokens were sent",
            ["outcome"],
            registry=registry,
        )
        self.rejected = Counter(
            "tandem_rejected", "Requests turned away", ["reason"], registry=registry
        )
        self.local_prefills = Counter(
            "tandem_local_prefills",
            "Prompts sent to a decode worker that reads them itself",
            ["reason"],
            registry=registry,
        )
        self.quota_fallbacks = Counter(
            "tandem_quota_fallbacks",
            "Requests whose quota was judged by this gateway alone while Redis was lost",
            registry=registry,
        )

    def _declare_latencies(self, registry: CollectorRegistry) -> None:
        self.ttft_seconds = Histogram(
            "tandem_ttft_seconds",
            "Request received to first token sent",
            buckets=TTFT_BUCKETS,
            registry=registry,
        )
        self.inter_token_seconds = Histogram(
            "tandem_inter_token_seconds",
            "Between two tokens of a stream",
            buckets=TOKEN_BUCKETS,
            registry=registry,
        )
        self.tpot_seconds = Histogram(
            "tandem_tpot_seconds",
            "Mean time per output token after the first, per request",
            buckets=TOKEN_BUCKETS,
            registry=registry,
        )
        self.e2e_seconds = Histogram(
            "tandem_e2e_seconds", "Whole request", buckets=DURATION_BUCKETS, registry=registry
        )
        self.phase_seconds = Histogram(
            "tandem_phase_seconds",
            "One phase of a request",
            ["phase"],
            buckets=DURATION_BUCKETS,
            registry=registry,
        )
        self.stream_stalls = Counter(
            "tandem_stream_stalls", "Gaps above 1 s in the tokens of an answer", registry=registry
        )
        self.slo = Counter(
            "tandem_slo", "Requests that a bound was applied to", ["slo"], registry=registry
        )
        self.slo_met = Counter(
            "tandem_slo_met", "Requests that kept within the bound", ["slo"], registry=registry
        )

    def _declare_volumes(self, registry: CollectorRegistry) -> None:
        self.prompt_tokens = Counter(
            "tandem_prompt_tokens", "Prompt tokens, pruned or not", registry=registry
        )
        self.output_tokens = Counter(
            "tandem_output_tokens", "Tokens sent to clients", registry=registry
        )
        self.requests_in_flight = Gauge(
            "tandem_requests_in_flight", "Requests being served", registry=registry
        )
        self.queue_depth = Gauge(
            "tandem_queue_depth", "Requests waiting for their prefill to start", registry=registry
        )
        self.queued_prompt_tokens = Gauge(
            "tandem_queued_prompt_tokens",
            "Prompt tokens of the requests waiting for their prefill to start",
            registry=registry,
        )
        self.ready_workers = Gauge(
            "tandem_ready_workers",
            "Workers that this gateway knows, that answer and do not drain; a decode worker that "
            "reads prompts itself counts in both roles",
            ["role"],
            registry=registry,
        )


class PrefillMetrics(GrammarMetrics):
    """Fed by the prefill service."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.claa_tokens_in = Counter(
            "tandem_claa_tokens_in", "Prompt tokens processed", registry=registry
        )
        self.claa_tokens_kept = Counter(
            "tandem_claa_tokens_kept", "Prompt tokens kept after pruning", registry=registry
        )
        self.claa_keep_rate = Histogram(
            "tandem_claa_keep_rate",
            "Kept share of a prompt",
            buckets=SHARE_BUCKETS,
            registry=registry,
        )
        self.claa_select_seconds = Histogram(
            "tandem_claa_select_seconds",
            "Scoring and selection of a prompt",
            buckets=STEP_BUCKETS,
            registry=registry,
        )
        self.batch_tokens = Histogram(
            "tandem_batch_tokens",
            "Prompt tokens of one pass through the model",
            buckets=PROMPT_BUCKETS,
            registry=registry,
        )
        self.batch_prompts = Histogram(
            "tandem_batch_prompts",
            "Prompts of one pass through the model",
            buckets=COUNT_BUCKETS,
            registry=registry,
        )
        self.running = Gauge("tandem_running", "Prompts in compute or delivery", registry=registry)
        self.kv_held_bytes = Gauge(
            "tandem_kv_held_bytes", "Sealed KV held for another delivery", registry=registry
        )
        self.kv_quarantined_bytes = Gauge(
            "tandem_kv_quarantined_bytes",
            "KV of ended prompts that a transfer may still read",
            registry=registry,
        )
        self.kv_quarantines = Counter(
            "tandem_kv_quarantines", "Slabs that went into quarantine", registry=registry
        )
        self.kv_lease_expired = Counter(
            "tandem_kv_lease_expired", "Holds that ended by their lease", registry=registry
        )
        self.queued_prompt_tokens = Gauge(
            "tandem_queued_prompt_tokens", "Prompt tokens in the queue", registry=registry
        )
        self.queue_depth = Gauge("tandem_queue_depth", "Prompts in the queue", registry=registry)


class HandoffFailureMetrics:
    """Fed by both sides of the KV handoff."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.transfer_failures = Counter(
            "tandem_transfer_failures", "Handoffs that failed", ["reason"], registry=registry
        )
        self.transport_info = Gauge(
            "tandem_transport_info", "1 for each transport in use", ["transport"], registry=registry
        )
        self.transport_rejected = Gauge(
            "tandem_transport_rejected",
            "1 for each transport that the settings name and that does not work here",
            ["transport", "reason"],
            registry=registry,
        )


class TransferMetrics(HandoffFailureMetrics):
    """Fed by the sending side of the KV handoff."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.kv_bytes = Counter(
            "tandem_kv_bytes", "KV bytes delivered", ["transport"], registry=registry
        )
        self.transfer_faults = Counter(
            "tandem_transfer_faults",
            "Faults made on purpose, by the setting faults",
            ["fault", "moment"],
            registry=registry,
        )
        self.kv_transfer_seconds = Histogram(
            "tandem_kv_transfer_seconds",
            "Time spent sending one handoff",
            ["transport"],
            buckets=DURATION_BUCKETS,
            registry=registry,
        )
        self.kv_transfer_gbps = Histogram(
            "tandem_kv_transfer_gbps",
            "Speed of one handoff, in gigabytes per second",
            ["transport"],
            buckets=GBPS_BUCKETS,
            registry=registry,
        )


class PairMetrics:
    """Fed by the sending side of the KV handoff: how its transports fare with decode workers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.canaries = Counter(
            "tandem_transport_canaries",
            "Trial transfers of 1 MiB to decode workers",
            ["transport", "outcome"],
            registry=registry,
        )
        self.canary_gbps = Histogram(
            "tandem_transport_canary_gbps",
            "Speed of a trial transfer that arrived, in gigabytes per second",
            ["transport"],
            buckets=GBPS_BUCKETS,
            registry=registry,
        )
        self.fallbacks = Counter(
            "tandem_transport_fallbacks",
            "Handoffs that could not take this transport and went by a later one",
            ["transport", "reason"],
            registry=registry,
        )
        self.rejected_pairs = Gauge(
            "tandem_transport_rejected_pairs",
            "Decode workers that this transport is not used to now",
            ["transport", "reason"],
            registry=registry,
        )


class DecodeMetrics(GrammarMetrics):
    """Fed by the decode service."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.running = Gauge("tandem_running", "Rows in the batch", registry=registry)
        self.waiting = Gauge(
            "tandem_waiting", "Adopted handoffs that wait for their turn", registry=registry
        )
        self.kv_pages_used = Gauge("tandem_kv_pages_used", "KV pages held", registry=registry)
        self.kv_pages_total = Gauge("tandem_kv_pages_total", "KV pages in all", registry=registry)
        self.kv_page_tokens = Gauge(
            "tandem_kv_page_tokens", "KV slots of a page", registry=registry
        )
        self.kv_utilization = Gauge(
            "tandem_kv_utilization",
            "Share of KV pages held in the fuller of both length groups",
            registry=registry,
        )
        self.step_seconds = Histogram(
            "tandem_step_seconds", "One decode step", buckets=STEP_BUCKETS, registry=registry
        )
        self.batch_size = Histogram(
            "tandem_batch_size", "Rows of a step", buckets=COUNT_BUCKETS, registry=registry
        )
        self.delta_pages_attended = Histogram(
            "tandem_delta_pages_attended",
            "Pages a row read in one step, mean over layers",
            buckets=COUNT_BUCKETS,
            registry=registry,
        )
        self.delta_page_ratio = Histogram(
            "tandem_delta_page_ratio",
            "KV slots read over those that full attention would have read, per request",
            buckets=SHARE_BUCKETS,
            registry=registry,
        )
        self.delta_refresh = Counter(
            "tandem_delta_refresh",
            "Choices of pages that layers which read everything made anew",
            registry=registry,
        )
        self.preemptions = Counter(
            "tandem_preemptions",
            "Rows that sat out a step: their reader is too far behind, or the batch is full",
            registry=registry,
        )
        self._declare_slow_ways(registry)
        self._declare_drift(registry)
        self.kv_lease_expired = Counter(
            "tandem_kv_lease_expired", "Reservations that ended by their lease", registry=registry
        )
        self.handoff_tokens_refused = Counter(
            "tandem_handoff_tokens_refused",
            "Pushes and commits that did not show the token of their grant",
            registry=registry,
        )

    def _declare_slow_ways(self, registry: CollectorRegistry) -> None:
        self.rows_by_torch = Counter(
            "tandem_rows_by_torch",
            "Answers that batched kernels leave to PyTorch, row by row",
            ["reason"],
            registry=registry,
        )
        self.commits_behind = Counter(
            "tandem_commits_behind",
            "Commits that copied all that had landed in device memory, none of it taken before",
            ["reason"],
            registry=registry,
        )

    def _declare_drift(self, registry: CollectorRegistry) -> None:
        self.sparse_mass = Histogram(
            "tandem_sparse_mass",
            "Share of full attention's mass in the KV slots that layers read at a sampled step, "
            "mean over heads; over the layers that read a choice, their mean and the least",
            ["over"],
            buckets=MASS_BUCKETS,
            registry=registry,
        )
        self.drift_checks = Counter(
            "tandem_drift_checks", "Sampled steps compared with full attention", registry=registry
        )
        self.drift_alarms = Counter(
            "tandem_drift_alarms",
            "Drift checks whose mean mass was below the alarm level",
            registry=registry,
        )
