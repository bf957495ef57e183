"""Names, labels and buckets that dashboards rely on."""

from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from shared.telemetry.buckets import TTFT_BUCKETS
from shared.telemetry.metrics import (
    BuildMetrics,
    DecodeMetrics,
    GatewayMetrics,
    HandoffFailureMetrics,
    HealthMetrics,
    PairMetrics,
    PrefillMetrics,
    TransferMetrics,
)

NAMES: dict[Callable[[CollectorRegistry], object], set[str]] = {
    GatewayMetrics: {
        "requests",
        "ttft_seconds",
        "inter_token_seconds",
        "tpot_seconds",
        "e2e_seconds",
        "phase_seconds",
        "prompt_tokens",
        "output_tokens",
        "requests_in_flight",
        "queue_depth",
        "queued_prompt_tokens",
        "ready_workers",
        "disconnects",
        "retries",
        "retries_denied",
        "replays",
        "rejected",
        "quota_fallbacks",
        "local_prefills",
        "stream_stalls",
        "slo",
        "slo_met",
        "grammar_compile_seconds",
    },
    PrefillMetrics: {
        "claa_tokens_in",
        "claa_tokens_kept",
        "claa_keep_rate",
        "claa_select_seconds",
        "batch_tokens",
        "batch_prompts",
        "running",
        "grammar_compile_seconds",
        "kv_held_bytes",
        "kv_quarantined_bytes",
        "kv_quarantines",
        "kv_lease_expired",
        "queue_depth",
        "queued_prompt_tokens",
    },
    TransferMetrics: {
        "kv_bytes",
        "kv_transfer_seconds",
        "kv_transfer_gbps",
        "transport_info",
        "transport_rejected",
        "transfer_failures",
        "transfer_faults",
    },
    PairMetrics: {
        "transport_canaries",
        "transport_canary_gbps",
        "transport_fallbacks",
        "transport_rejected_pairs",
    },
    DecodeMetrics: {
        "running",
        "waiting",
        "kv_pages_used",
        "kv_pages_total",
        "kv_utilization",
        "step_seconds",
        "batch_size",
        "delta_pages_attended",
        "delta_page_ratio",
        "delta_refresh",
        "handoff_tokens_refused",
        "preemptions",
        "rows_by_torch",
        "commits_behind",
        "kv_page_tokens",
        "sparse_mass",
        "drift_checks",
        "drift_alarms",
        "grammar_compile_seconds",
        "kv_lease_expired",
    },
    BuildMetrics: {"build_info", "config_info"},
    HandoffFailureMetrics: {"transfer_failures", "transport_info", "transport_rejected"},
    HealthMetrics: {
        "build_info",
        "config_info",
        "engine_last_step_age_seconds",
        "kv_memory_fallback",
    },
}

ALLOWED_LABELS = {
    *("role", "model", "worker", "endpoint", "outcome", "code", "reason", "transport", "phase"),
    *("slo", "version", "config", "over", "le", "fault", "moment"),
}


def _registry(group: Callable[[CollectorRegistry], object]) -> CollectorRegistry:
    registry = CollectorRegistry()
    group(registry)
    return registry


@pytest.mark.parametrize("group", NAMES)
def test_names(group: Callable[[CollectorRegistry], object]) -> None:
    found = {family.name for family in _registry(group).collect()}
    assert found == {f"tandem_{name}" for name in NAMES[group]}


@pytest.mark.parametrize("group", NAMES)
def test_labels_are_bounded_sets(group: Callable[[CollectorRegistry], object]) -> None:
    instance = group(CollectorRegistry())
    for metric in vars(instance).values():
        assert set(metric._labelnames) <= ALLOWED_LABELS


def test_counters_end_in_total() -> None:
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry)
    metrics.requests.labels("chat", "200", "ok").inc()
    line = 'tandem_requests_total{code="200",endpoint="chat",outcome="ok"} 1.0'
    assert line in generate_latest(registry).decode()


def test_ttft_buckets_reach_from_a_millisecond_to_ten_minutes() -> None:
    assert TTFT_BUCKETS[0] == 0.001
    assert TTFT_BUCKETS[15] == 10.0
    assert TTFT_BUCKETS[16:] == (20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
    assert list(TTFT_BUCKETS) == sorted(TTFT_BUCKETS)


def test_two_processes_worth_of_groups_do_not_meet() -> None:
    first, second = CollectorRegistry(), CollectorRegistry()
    PrefillMetrics(first).kv_held_bytes.set(5)
    PrefillMetrics(second)
    assert second.get_sample_value("tandem_kv_held_bytes") == 0
