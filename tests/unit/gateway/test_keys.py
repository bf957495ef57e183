"""API keys: secrets, the file, the ring that reloads it."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.keys.file import editing, read_keys, write_keys
from gateway.keys.record import KeyRecord, hash_of, id_in, new_secret
from gateway.keys.ring import KeyRing
from gateway.principal import KeyLimits
from shared.errors import AuthenticationError, ConfigError

NOW = datetime(2027, 1, 1, tzinfo=UTC)


def made(key_id: str, **fields) -> tuple[str, KeyRecord]:
    secret = new_secret(key_id)
    return secret, KeyRecord(key_id=key_id, sha256=hash_of(secret), created=NOW, **fields)


def written(path: Path, *records: KeyRecord) -> Path:
    write_keys(path, {record.key_id: record for record in records})
    return path


def refused(ring: KeyRing, authorization: str | None) -> str:
    with pytest.raises(AuthenticationError) as caught:
        ring.authenticate(authorization)
    assert caught.value.error_code == "invalid_api_key"
    return caught.value.message


def test_a_secret_names_its_key_and_is_never_the_same() -> None:
    first, second = new_secret("team-a"), new_secret("team-a")
    assert first != second
    assert id_in(first) == id_in(second) == "team-a"
    for other in ("", "sk-abc", first + "x", first.replace("tandem", "other"), "x" * 10_000):
        assert id_in(other) is None


def test_keys_made_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "new-folder" / "keys.json"

    def add(number: int) -> None:
        with editing(path, make_folder=True):
            records = read_keys(path) if path.exists() else {}
            written(path, *records.values(), made(f"key-{number}")[1])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(40)))
    assert read_keys(path).keys() == {f"key-{number}" for number in range(40)}


def test_the_file_keeps_everything_but_the_secret(tmp_path: Path) -> None:
    limits = KeyLimits(requests_per_minute=60, tokens_per_minute=100_000, weight=2.0)
    secret, record = made("team-a", expires=NOW, admin=True, limits=limits)
    _, plain = made("b")
    path = written(tmp_path / "keys.json", record, plain)
    assert read_keys(path) == {"team-a": record, "b": plain}
    assert secret not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)  # an operator's choice stays
    written(path, record)
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"keys": {}},
        {"keys": [1]},
        {"keys": [{}]},
        {"keys": "entry twice"},
        {"id": "Team A"},
        {"id": "-a"},
        {"id": 7},
        {"sha256": "abc"},
        {"created": "yesterday"},
        {"expires": "2027-01-01T00:00:00"},
        {"admin": "yes"},
        {"requests_per_minute": 0},
        {"tokens_per_minute": True},
        {"weight": -1.0},
        {"weight": float("inf")},
        {"weight": float("nan")},
        {"colour": "red"},
    ],
    ids=str,
)
def test_a_file_that_cannot_be_is_refused_with_its_reason(tmp_path: Path, change) -> None:
    path = written(tmp_path / "keys.json", made("a")[1])
    body = json.loads(path.read_text())
    if change == {"keys": "entry twice"}:
        body["keys"] *= 2
    elif change.keys() <= {"version", "keys"}:
        body |= change
    else:
        body["keys"][0] |= change
    path.write_text(json.dumps(body))
    with pytest.raises(ConfigError):
        read_keys(path)


def test_a_missing_and_a_damaged_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tandem key new"):
        KeyRing(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ConfigError, match="no file of API keys"):
        KeyRing(tmp_path / "bad.json")


def test_the_right_key_is_known_and_everything_else_refused(tmp_path: Path) -> None:
    limits = KeyLimits(requests_per_minute=5)
    secret, record = made("team-a", limits=limits)
    other, _ = made("team-a")
    unknown, _ = made("team-b")
    ring = KeyRing(written(tmp_path / "keys.json", record))
    principal = ring.authenticate(f"Bearer {secret}")
    assert (principal.key_id, principal.limits, principal.admin) == ("team-a", limits, False)
    assert ring.authenticate(f"bearer  {secret} ") == principal
    assert "no API key" in refused(ring, None)
    assert "no API key" in refused(ring, "")
    for wrong in (
        f"Bearer {other}",
        f"Bearer {unknown}",
        f"Basic {secret}",
        secret,
        f"Bearer {secret}x",
        f"Bearer {record.sha256}",
        "Bearer ",
        "Bearer tandem_team-a_",
        "Bearer \udc80ÿ",
    ):
        message = refused(ring, wrong)
        assert "not valid" in message
        assert wrong.split()[-1] not in message or wrong == "Bearer "


def test_a_key_ends_with_its_expiry(tmp_path: Path) -> None:
    secret, record = made("a", expires=NOW)
    path = written(tmp_path / "keys.json", record)
    before = KeyRing(path, clock=lambda: NOW - timedelta(seconds=1))
    assert before.authenticate(f"Bearer {secret}").key_id == "a"
    assert "expired" in refused(KeyRing(path, clock=lambda: NOW), f"Bearer {secret}")


def test_a_changed_file_counts_at_once_and_a_damaged_one_changes_nothing(tmp_path: Path) -> None:
    first, record = made("a")
    second, added = made("b")
    path = written(tmp_path / "keys.json", record)
    ring = KeyRing(path)
    refused(ring, f"Bearer {second}")
    written(path, record, added)
    assert ring.authenticate(f"Bearer {second}").key_id == "b"
    written(path, added)
    refused(ring, f"Bearer {first}")
    path.write_text("{}")
    assert ring.authenticate(f"Bearer {second}").key_id == "b"
    path.unlink()
    assert ring.authenticate(f"Bearer {second}").key_id == "b"
    written(path, record)
    assert ring.authenticate(f"Bearer {first}").key_id == "a"
