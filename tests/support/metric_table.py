"""What /metrics of each role shows: the table that dashboards, alerts and autoscalers rely on."""

from dataclasses import dataclass

TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 320.0, 640.0),
)
PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
DURATION = (
    *(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
    *(163.84, 327.68, 655.36),
)
STEP = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
SHARE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
MASS = (0.25, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 1.0)
GBPS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 200.0, 400.0)
PROMPT = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
COUNT = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True)
class Metric:
    """One line of the table."""

    kind: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def counter(*labels: str) -> Metric:
    return Metric("counter", labels)


def gauge(*labels: str) -> Metric:
    return Metric("gauge", labels)


def histogram(buckets: tuple[float, ...], *labels: str) -> Metric:
    return Metric("histogram", labels, buckets)


EVERY_ROLE = {
    "build_info": gauge("role", "model", "version"),
    "config_info": gauge("role", "config"),
    "grammar_compile_seconds": histogram(STEP),
}

TABLE: dict[str, dict[str, Metric]] = {
    "gateway": EVERY_ROLE
    | {
        "requests_total": counter("endpoint", "code", "outcome"),
        "ttft_seconds": histogram(TTFT),
        "inter_token_seconds": histogram(PER_TOKEN),
        "tpot_seconds": histogram(PER_TOKEN),
        "e2e_seconds": histogram(DURATION),
        "phase_seconds": histogram(DURATION, "phase"),
        "prompt_tokens_total": counter(),
        "output_tokens_total": counter(),
        "requests_in_flight": gauge(),
        "queue_depth": gauge(),
        "queued_prompt_tokens": gauge(),
        "ready_workers": gauge("role"),
        "disconnects_total": counter("phase"),
        "retries_total": counter("reason"),
        "retries_denied_total": counter(),
        "replays_total": counter("outcome"),
        "rejected_total": counter("reason"),
        "quota_fallbacks_total": counter(),
        "local_prefills_total": counter("reason"),
        "slo_total": counter("slo"),
        "slo_met_total": counter("slo"),
        "stream_stalls_total": counter(),
    },
    "prefill": EVERY_ROLE
    | {
        "claa_tokens_in_total": counter(),
        "claa_tokens_kept_total": counter(),
        "claa_keep_rate": histogram(SHARE),
        "claa_select_seconds": histogram(STEP),
        "batch_tokens": histogram(PROMPT),
        "batch_prompts": histogram(COUNT),
        "kv_held_bytes": gauge(),
        "kv_quarantined_bytes": gauge(),
        "kv_quarantines_total": counter(),
        "kv_lease_expired_total": counter(),
        "queue_depth": gauge(),
        "queued_prompt_tokens": gauge(),
        "running": gauge(),
        "kv_bytes_total": counter("transport"),
        "kv_transfer_seconds": histogram(DURATION, "transport"),
        "kv_transfer_gbps": histogram(GBPS, "transport"),
        "transport_info": gauge("transport"),
        "transport_rejected": gauge("transport", "reason"),
        "transport_rejected_pairs": gauge("transport", "reason"),
        "transport_canaries_total": counter("transport", "outcome"),
        "transport_canary_gbps": histogram(GBPS, "transport"),
        "transport_fallbacks_total": counter("transport", "reason"),
        "transfer_failures_total": counter("reason"),
        "transfer_faults_total": counter("fault", "moment"),
        "engine_last_step_age_seconds": gauge(),
        "kv_memory_fallback": gauge("reason"),
    },
    "decode": EVERY_ROLE
    | {
        "running": gauge(),
        "waiting": gauge(),
        "kv_pages_used": gauge(),
        "kv_pages_total": gauge(),
        "kv_page_tokens": gauge(),
        "kv_utilization": gauge(),
        "step_seconds": histogram(STEP),
        "batch_size": histogram(COUNT),
        "delta_pages_attended": histogram(COUNT),
        "delta_page_ratio": histogram(SHARE),
        "delta_refresh_total": counter(),
        "preemptions_total": counter(),
        "rows_by_torch_total": counter("reason"),
        "commits_behind_total": counter("reason"),
        "kv_lease_expired_total": counter(),
        "transport_info": gauge("transport"),
        "transport_rejected": gauge("transport", "reason"),
        "transfer_failures_total": counter("reason"),
        "handoff_tokens_refused_total": counter(),
        "sparse_mass": histogram(MASS, "over"),
        "drift_checks_total": counter(),
        "drift_alarms_total": counter(),
        "engine_last_step_age_seconds": gauge(),
        "kv_memory_fallback": gauge("reason"),
    },
}
"""By role, without the prefix `tandem_`; names as Prometheus shows them."""

LABEL_VALUES = {
    "phase": {
        *("gateway_queue", "prefill_queue", "prefill", "transfer"),
        *("decode_queue", "first_decode", "stream"),
        *("queue", "decode"),  # of disconnects
    },
    "outcome": {
        *("ok", "error", "cancelled"),
        *("arrived", "no_room", "not_known"),  # of canaries
        *("canary_failed", "canary_damaged", "canary_too_slow"),
        *("completed", "failed", "client_left", "operator_forbids", "not_asked"),  # of replays
        *("several_answers", "no_budget"),
    },
    "slo": {"ttft", "tpot", "goodput"},
    "over": {"mean", "least"},
    "role": {"gateway", "prefill", "decode"},
}
"""All values that a label may have, where they are few and known."""
