"""`tandem key`: what it prints, what the file keeps, and that the gateway takes it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy.chat import open_client
from deploy.cli import app
from gateway.keys.ring import KeyRing
from shared.errors import AuthenticationError, ConfigError


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["key", *map(str, arguments)])
    if result.exception is not None:
        raise result.exception
    return result.output


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def test_a_key_is_shown_once_and_gets_in_until_it_is_revoked(file: Path) -> None:
    secret = run("new", "team-a", "--file", file).strip()
    admin = json.loads(run("new", "ops", "--file", file, "--admin", "--days", 30, "--json"))
    ring = KeyRing(file)
    assert ring.authenticate(f"Bearer {secret}").key_id == "team-a"
    assert ring.authenticate(f"Bearer {admin['key']}").admin
    shown = run("list", "--file", file)
    assert "team-a" in shown
    for hidden in (secret, admin["key"]):
        assert hidden not in shown + file.read_text()
    assert run("revoke", "team-a", "--file", file) == "revoked team-a\n"
    with pytest.raises(AuthenticationError):
        ring.authenticate(f"Bearer {secret}")
    (left,) = json.loads(run("list", "--file", file, "--json"))["keys"]
    assert (left["id"], left["admin"], left["expired"]) == ("ops", True, False)
    assert left["expires"] == admin["expires"]


def test_limits_are_kept(file: Path) -> None:
    limits = ("--requests-per-minute", 60, "--tokens-per-minute", 9000, "--weight", 2.5)
    secret = run("new", "a", "--file", file, *limits).strip()
    found = KeyRing(file).authenticate(f"Bearer {secret}").limits
    assert (found.requests_per_minute, found.tokens_per_minute, found.weight) == (60, 9000, 2.5)


def test_the_gateways_own_file_is_the_default(file: Path, monkeypatch) -> None:
    monkeypatch.setenv("TANDEM_GATEWAY__API_KEYS", str(file))
    run("new", "a")
    assert "a" in run("list")
    monkeypatch.delenv("TANDEM_GATEWAY__API_KEYS")
    with pytest.raises(ConfigError, match="--file"):
        run("list")


def test_mistakes_are_named(file: Path) -> None:
    run("new", "a", "--file", file)
    for words, wrong in (
        ("exists", ("new", "a")),
        ("lower-case", ("new", "Team A")),
        ("no key b", ("revoke", "b")),
    ):
        with pytest.raises(ConfigError, match=words):
            run(*wrong, "--file", file)


def test_chat_sends_the_key_of_the_environment(monkeypatch) -> None:
    with open_client("http://gateway") as client:
        assert "authorization" not in client.headers
    monkeypatch.setenv("TANDEM_API_KEY", "tandem_a_b")
    with open_client("http://gateway") as client:
        assert client.headers["authorization"] == "Bearer tandem_a_b"


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:8000", "http://127.0.0.1:8000", "http://127.0.0.1:8000/v1/", "127.0.0.1:8000/v1"],
)
def test_an_address_is_taken_as_the_banner_prints_it(url: str) -> None:
    with open_client(url) as client:
        assert str(client.base_url) == "http://127.0.0.1:8000"
