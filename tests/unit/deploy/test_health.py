"""`tandem health` asks where the role's settings say it listens."""

import json

import pytest

from deploy.health import own_address, run_health
from shared.errors import ConfigError
from tests.support.redis_server import free_port


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1:8201"),
        ("0.0.0.0", "127.0.0.1:8201"),  # noqa: S104  asked, never bound
        ("::", "[::1]:8201"),
        ("10.0.0.7", "10.0.0.7:8201"),
    ],
)
def test_a_role_on_every_address_is_asked_on_loopback(host, address):
    assert own_address(host, 8201) == address


def test_a_port_that_the_system_chose_has_to_be_named():
    with pytest.raises(ConfigError, match="--address"):
        own_address("127.0.0.1", 0)


@pytest.mark.parametrize("role", ["gateway", "prefill", "decode"])
def test_the_port_is_the_configured_one(role, monkeypatch, capsys):
    port = free_port()
    monkeypatch.setenv(f"TANDEM_{role.upper()}__PORT", str(port))
    assert run_health(role=role, address="", timeout_s=5, as_json=True) == 1
    assert json.loads(capsys.readouterr().out)["address"] == f"127.0.0.1:{port}"


def test_under_tls_the_admin_page_is_asked(monkeypatch, capsys, tmp_path):
    port = free_port()
    monkeypatch.setenv("TANDEM_DECODE__TLS_CERT", str(tmp_path / "decode.pem"))
    monkeypatch.setenv("TANDEM_DECODE__ADMIN_PORT", str(port))
    assert run_health(role="decode", address="", timeout_s=5, as_json=True) == 1
    assert json.loads(capsys.readouterr().out)["address"] == f"127.0.0.1:{port}"
