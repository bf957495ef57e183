"""No number of any role's settings may be one that fails later, with each request."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from deploy.settings import CONFIG_CLASSES, config_class
from shared.config.bounds import MAX_SECONDS
from shared.config.fields import describe
from shared.config.loader import LoadedConfig, load_config
from shared.errors import ConfigError

FLOATS = [
    (role, info.name)
    for role in CONFIG_CLASSES
    for info in describe(config_class(role)).values()
    if info.type is float
]
PORTS = [
    (role, field.name)
    for role in CONFIG_CLASSES
    for field in dataclasses.fields(config_class(role))
    if field.name.split("_")[-1] == "port"
]


def load(role: str, name: str, text: str, tmp_path: Path) -> object:
    """As the command line, with no file and no environment."""
    empty = tmp_path / "empty.toml"
    empty.touch()
    loaded: LoadedConfig[Any] = load_config(
        config_class(role), section=role, flags={name: text}, environ={}, file=empty
    )
    return getattr(loaded.value, name)


def test_every_role_has_numbers_to_check() -> None:
    assert {role for role, _ in FLOATS} == {role for role, _ in PORTS} == set(CONFIG_CLASSES)


@pytest.mark.parametrize(("role", "name"), FLOATS, ids=str)
@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e300", "-1"])
def test_senseless_numbers_are_refused(role: str, name: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=name):
        load(role, name, text, tmp_path)
    with pytest.raises(ConfigError, match=name):
        config_class(role)(**{name: float(text)})


@pytest.mark.parametrize(("role", "name"), PORTS, ids=str)
@pytest.mark.parametrize("text", ["-1", "65536"])
def test_ports_are_ports(role: str, name: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=name):
        load(role, name, text, tmp_path)
    assert load(role, name, "65535", tmp_path) == 65_535


@pytest.mark.parametrize("role", ["gateway", "prefill", "decode"])
def test_shares_are_shares(role: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{role} setting otlp_sample_ratio is 5.0"):
        load(role, "otlp_sample_ratio", "5", tmp_path)


def test_the_longest_time_fits_the_wire(tmp_path: Path) -> None:
    longest = load("gateway", "request_timeout_s", str(MAX_SECONDS), tmp_path)
    assert longest == MAX_SECONDS
    assert math.log2(MAX_SECONDS * 1000) < 32
    with pytest.raises(ConfigError, match="30 days"):
        load("gateway", "request_timeout_s", str(MAX_SECONDS + 1), tmp_path)
