"""`tandem doctor`: every check of this machine in one table, fit to be pasted into an issue."""

import json
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deploy.doctor_machine import machine_checks, port_checks
from deploy.doctor_packages import package_checks
from deploy.doctor_services import service_checks
from deploy.doctor_transports import transport_checks
from deploy.finding import Status
from deploy.version import full_version

_STYLES = {Status.OK: "green", Status.NOTE: "yellow", Status.FAIL: "bold red"}


def run_doctor(*, as_json: bool, with_ports: bool, cache_dir: Path | None) -> int:
    """Runs the checks and prints them; returns 1 when one fails."""
    findings = [*package_checks(), *machine_checks(), *service_checks(cache_dir)]
    findings += transport_checks()
    if with_ports:
        findings += port_checks()
    ok = all(finding.status is not Status.FAIL for finding in findings)
    if as_json:
        checks = [finding.as_dict() for finding in findings]
        print(json.dumps({"ok": ok, "version": full_version(), "checks": checks}))
        return 0 if ok else 1
    table = Table("check", "status", "detail", "what to do")
    for finding in findings:
        style = _STYLES[finding.status]
        status = f"[{style}]{finding.status.value}[/{style}]"
        table.add_row(finding.name, status, escape(finding.detail), escape(finding.remedy))
    console = Console()
    console.print(table)
    console.print("all well" if ok else "[bold red]something will not work; see above[/bold red]")
    return 0 if ok else 1
