"""Settings of the prefill service are checked when they are read."""

import pytest

from prefill_service.config import PrefillConfig
from shared.config.loader import load_config
from shared.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("chunk_tokens", "0"),
        ("queue_tokens", "-1"),
        ("port", "-1"),
        ("sealed_lease_s", "0"),
        ("reserve_wait_s", "nan"),
        ("drain_s", "-1"),
        ("transports", ""),
        ("log_format", "xml"),
    ],
)
def test_values_out_of_range(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        load_config(PrefillConfig, section="prefill", flags={name: value}, environ={})


def test_environment_and_flags() -> None:
    loaded = load_config(
        PrefillConfig,
        section="prefill",
        flags={"port": "0"},
        environ={"TANDEM_PREFILL__PORT": "9", "TANDEM_PREFILL__TRANSPORTS": "nixl,grpc"},
    )
    assert loaded.value.port == 0
    assert loaded.value.transports == ("nixl", "grpc")
    assert loaded.origins["port"] == "flag --port"
