"""The Grafana dashboard: its panels ask only for what a running pair shows, and fit its page."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.promql import faults, selectors

ROOT = Path(__file__).parents[2]
DASHBOARD: dict[str, Any] = json.loads(
    (ROOT / "deploy/grafana/tandem.json").read_text(encoding="utf-8")
)
PANELS: list[dict[str, Any]] = [p for p in DASHBOARD["panels"] if p["type"] != "row"]
WINDOW = "$__rate_interval"
"""Grafana's own variable: the shortest window that a rate needs."""


def expressions(panel: dict[str, Any]) -> list[str]:
    return [target["expr"].replace(WINDOW, "5m") for target in panel["targets"]]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_asks_only_for_what_a_running_pair_shows(panel: dict[str, Any]) -> None:
    """The table is what a running pair shows: the audit of metrics holds them equal."""
    assert panel["targets"]
    assert [fault for expr in expressions(panel) for fault in faults(expr)] == []


def test_what_operators_look_for_is_there() -> None:
    shown = {s.name for panel in PANELS for expr in expressions(panel) for s in selectors(expr)}
    histograms = ("ttft", "inter_token", "e2e", "step", "kv_transfer", "claa_select")
    assert shown >= {f"tandem_{name}_seconds_bucket" for name in histograms}
    assert shown >= {
        *("tandem_build_info", "tandem_ready_workers", "tandem_requests_total"),
        *("tandem_running", "tandem_waiting", "tandem_queue_depth", "tandem_kv_utilization"),
        *("tandem_claa_keep_rate_sum", "tandem_delta_page_ratio_sum"),
        *("tandem_kv_bytes_total", "tandem_phase_seconds_sum"),
    }


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in itertools.combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)


def test_every_panel_reads_the_source_that_is_chosen_above() -> None:
    (variable,) = DASHBOARD["templating"]["list"]
    assert (variable["name"], variable["type"]) == ("source", "datasource")
    wanted = {"type": "prometheus", "uid": "${source}"}
    assert all(panel["datasource"] == wanted for panel in PANELS)
    assert all(target["datasource"] == wanted for panel in PANELS for target in panel["targets"])


def test_the_compose_file_provides_it() -> None:
    provider = yaml.safe_load(
        (ROOT / "deploy/docker/grafana/dashboards/tandem.yml").read_text(encoding="utf-8")
    )
    (path,) = [entry["options"]["path"] for entry in provider["providers"]]
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    mounts = dict(mount.split(":")[:2] for mount in compose["services"]["grafana"]["volumes"])
    assert mounts["./deploy/grafana"] == path
    assert mounts["./deploy/docker/grafana"] == "/etc/grafana/provisioning"
