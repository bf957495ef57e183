"""The alert rules: complete, written in PromQL, and about nothing that no role shows."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.promql import faults

FOLDER = Path(__file__).parents[2] / "deploy/prometheus"
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
WANTED = {
    "TandemNoReadyWorker",
    "TandemEngineStalled",
    "TandemTtftBeyondSlo",
    "TandemQueueGrows",
    "TandemTransfersFail",
    "TandemSlowTransport",
    "TandemLeasesExpire",
    "TandemKvQuarantined",
    "TandemAnswersLoseTheirWorker",
    "TandemRetryBudgetUsedUp",
    "TandemKvFull",
    "TandemKeepRateOutsideBand",
    "TandemPageRatioOutsideBand",
    "TandemScrapeFails",
    "TandemNotScraped",
}

HAS_PROMTOOL = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="promtool is not installed (Debian: package prometheus)",
)


def test_every_promised_alert_is_there_once() -> None:
    assert set(ALERTS) == WANTED
    assert len(ALERTS) + len(RECORDED) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_expressions_ask_only_for_what_a_running_pair_shows(rule: dict[str, Any]) -> None:
    """The table is what a running pair shows: the audit of metrics holds them equal."""
    assert faults(rule["expr"], recorded=RECORDED) == []


@pytest.mark.parametrize("alert", ALERTS)
def test_alerts_say_how_bad_what_and_what_to_do(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert all(rule["annotations"][part].strip() for part in ("summary", "description"))


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("rate(tandem_nothing_total[5m])", ["tandem_nothing_total is shown by no role"]),
        ("node_load1", ["node_load1 is shown by no role"]),
        ("tandem_kv_utilization{role='decode'}", ["tandem_kv_utilization has no label role"]),
        ("tandem_ttft_seconds", ["tandem_ttft_seconds is shown by no role"]),
        ("tandem_ttft_seconds_bucket{le='3'}", ["tandem_ttft_seconds_bucket has no bucket 3"]),
        ("tandem_slo_total{slo='x'}", ["tandem_slo_total never has slo=x"]),
        ("sum by (model) (tandem_running)", ["nothing has the label model"]),
        ("tandem_running / on (host) tandem_waiting", ["nothing has the label host"]),
        ("tandem:made_up:mean", ["tandem:made_up:mean is shown by no role"]),
        ("sum by (le) (rate(tandem_ttft_seconds_bucket{le='2.5'}[5m])) > up", []),
    ],
)
def test_the_check_sees_what_is_wrong(expression: str, said: list[str]) -> None:
    assert faults(expression) == said


@HAS_PROMTOOL
def test_prometheus_fires_them_when_it_should_and_only_then() -> None:
    subprocess.run(
        ["promtool", "test", "rules", FOLDER / "alerts_test.yml"], check=True, timeout=60
    )


@HAS_PROMTOOL
def test_promtool_has_nothing_against_them_and_the_settings_of_compose(tmp_path: Path) -> None:
    for file in (FOLDER / "alerts.yml", FOLDER.parent / "docker/prometheus.yml"):
        shutil.copy(file, tmp_path)  # as the Compose file mounts them: side by side
    for kind, name in (("rules", "alerts.yml"), ("config", "prometheus.yml")):
        subprocess.run(["promtool", "check", kind, tmp_path / name], check=True, timeout=60)
