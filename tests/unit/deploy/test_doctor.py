import json
import socket

import psutil
import pytest

from deploy.doctor import run_doctor
from deploy.doctor_machine import _port
from deploy.doctor_packages import package_checks
from deploy.doctor_services import service_checks
from deploy.finding import Status


@pytest.fixture
def clean_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("TANDEM_CONFIG", "TANDEM_GATEWAY__MODEL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def by_name(findings):
    return {finding.name: finding for finding in findings}


def test_this_environment_has_what_it_needs():
    failed = [finding for finding in package_checks() if finding.status is Status.FAIL]
    assert not failed


def test_absent_optional_packages_are_notes_with_a_reason():
    for finding in package_checks():
        if finding.name.startswith("optional") and finding.status is not Status.OK:
            assert finding.status is Status.NOTE
            assert "not installed" in finding.detail or "cannot be imported" in finding.detail


def test_a_module_whose_package_is_broken_counts_as_absent(tmp_path, monkeypatch):
    broken = tmp_path / "flash_attn"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('undefined symbol')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("optional: flash-attn-4", "optional: flash-attn"):
        assert "not installed" in by_name(package_checks())[name].detail


def test_busy_port_fails_and_free_one_does_not():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        busy = _port("REST", port)
    assert busy.status is Status.FAIL
    assert "in use" in busy.detail
    assert _port("REST", port).status is Status.OK


def test_a_port_of_a_running_role_is_a_note(monkeypatch):
    monkeypatch.setattr(psutil.Process, "cmdline", lambda _: ["python", "-m", "decode_service"])
    with socket.create_server(("127.0.0.1", 0)) as server:
        finding = _port("decode", server.getsockname()[1])
    assert finding.status is Status.NOTE
    assert "decode_service" in finding.detail


def test_missing_model_fails_with_the_command_that_helps(clean_settings):
    finding = by_name(service_checks(clean_settings))["model smollm2"]
    assert finding.status is Status.FAIL
    assert finding.remedy == "tandem model pull smollm2"


def test_complete_model_is_ok(clean_settings, tiny_model_dir, monkeypatch):
    monkeypatch.setenv("TANDEM_GATEWAY__MODEL", str(tiny_model_dir))
    finding = by_name(service_checks(None))[f"model {tiny_model_dir}"]
    assert finding.status is Status.OK, finding


def test_unreachable_redis_and_worker_fail_and_the_password_is_hidden(clean_settings, monkeypatch):
    monkeypatch.setenv("TANDEM_GATEWAY__REDIS_URL", "redis://user:secret@127.0.0.1:9/0")
    monkeypatch.setenv("TANDEM_GATEWAY__PREFILL_WORKERS", "127.0.0.1:9")
    findings = by_name(service_checks(None))
    assert findings["Redis"].status is Status.FAIL
    assert "secret" not in findings["Redis"].detail
    assert findings["worker 127.0.0.1:9"].status is Status.FAIL


def test_unreadable_settings_are_the_finding(clean_settings, monkeypatch):
    monkeypatch.setenv("TANDEM_GATEWAY__MODLE", "x")
    (finding,) = service_checks(None)
    assert finding.status is Status.FAIL
    assert "model" in finding.detail


def test_json_and_exit_code(clean_settings, capsys):
    code = run_doctor(as_json=True, with_ports=False, cache_dir=clean_settings)
    report = json.loads(capsys.readouterr().out)
    assert code == 1
    assert report["ok"] is False
    assert {"name", "status", "detail", "remedy"} == set(report["checks"][0])


def test_table_shows_extras_in_full(clean_settings, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr("deploy.doctor_packages.installed_version", lambda _: None)
    run_doctor(as_json=False, with_ports=False, cache_dir=clean_settings)
    assert "'.[worker]'" in capsys.readouterr().out
