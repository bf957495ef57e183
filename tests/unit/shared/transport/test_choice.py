"""What a worker does about transports that its settings name and that do not work there."""

import importlib
import importlib.util
import logging

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from shared.errors import ConfigError
from shared.telemetry.metrics import HandoffFailureMetrics
from shared.transport import nixl_library
from shared.transport.choice import ChosenTransports, open_transports
from shared.transport.instrumented import note_transports
from tests.support.transfer_parts import needs_nixl, nixl_missing


def open_one(name: str) -> str:
    if name == "nixl":
        raise ConfigError("package nixl-cu13 is not installed", code=nixl_library.NOT_INSTALLED)
    if name == "pigeon":
        raise ConfigError("unknown transport 'pigeon'")
    return name.upper()


def chosen(*wanted: str, required: str = "") -> ChosenTransports[str]:
    return open_transports(wanted, required=required, open_one=open_one)


def test_what_works_is_opened_in_order_and_the_rest_has_a_reason() -> None:
    found = chosen("nixl", "grpc", "loopback")
    assert found.names == ("grpc", "loopback")
    assert found.opened == {"grpc": "GRPC", "loopback": "LOOPBACK"}
    assert [each.text for each in found.rejected] == ["nixl: package nixl-cu13 is not installed"]


def test_a_required_one_that_does_not_work_refuses_the_start_with_its_reason() -> None:
    with pytest.raises(ConfigError, match=r"required.*nixl: package nixl-cu13 is not installed"):
        chosen("grpc", required="nixl")


def test_a_required_one_that_works_is_the_only_one() -> None:
    assert chosen("nixl", "grpc", required="grpc").names == ("grpc",)


def test_nothing_that_works_refuses_the_start() -> None:
    with pytest.raises(ConfigError, match="no transport of the settings"):
        chosen("nixl")


def test_a_wrong_setting_is_not_taken_for_an_absent_transport() -> None:
    with pytest.raises(ConfigError, match="pigeon"):
        chosen("grpc", "pigeon")


def test_metrics_show_both_and_the_log_what_does_not_work() -> None:
    registry = CollectorRegistry()
    with capture_logs() as logs:
        note_transports(chosen("nixl", "grpc"), HandoffFailureMetrics(registry))
    assert [(line["log_level"], line["transport"]) for line in logs] == [("warning", "nixl")]
    value = registry.get_sample_value
    assert value("tandem_transport_info", {"transport": "grpc"}) == 1
    assert value("tandem_transport_info", {"transport": "nixl"}) is None
    labels = {"transport": "nixl", "reason": "not_installed"}
    assert value("tandem_transport_rejected", labels) == 1


def test_a_library_that_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match="nixl-cu13 is not installed") as raised:
        nixl_library.load_nixl()
    assert raised.value.error_code == nixl_library.NOT_INSTALLED


def test_a_library_that_cannot_be_imported_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ImportError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(ConfigError, match=r"libcudart\.so\.13") as raised:
        nixl_library.load_nixl()
    assert raised.value.error_code == nixl_library.BROKEN


def test_where_the_package_is_installed_it_works_and_no_test_of_it_is_skipped() -> None:
    installed = any(importlib.util.find_spec(name) for name, _ in nixl_library._PACKAGES)
    assert installed == (not nixl_missing())


@needs_nixl
def test_the_library_keeps_its_hands_off_our_logs() -> None:
    before = logging.raiseExceptions
    nixl_library.load_nixl()
    assert logging.raiseExceptions == before
    assert logging.getLogger("nixl").handlers == []
