"""Settings of the decode service."""

import pytest

from decode_service.config import DecodeConfig
from shared.config.loader import load_config
from shared.errors import ConfigError


def test_defaults_are_valid_and_each_field_is_documented() -> None:
    loaded = load_config(DecodeConfig, section="decode", environ={})
    assert loaded.value == DecodeConfig()
    assert set(loaded.origins.values()) == {"default"}


def test_flags_win_over_the_environment() -> None:
    loaded = load_config(
        DecodeConfig,
        section="decode",
        flags={"port": "0"},
        environ={"TANDEM_DECODE__PORT": "9", "TANDEM_DECODE__MAX_BATCH": "4"},
    )
    assert (loaded.value.port, loaded.value.max_batch) == (0, 4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kv_bytes", 0),
        ("max_batch", 0),
        ("port", -1),
        ("lease_s", 0.0),
        ("adopt_lease_s", float("nan")),
        ("stall_s", -1.0),
        ("log_format", "xml"),
        ("products", "cublas"),
        ("stream_queue_tokens", 0),
        ("drift_every", -1),
        ("drift_alarm", -0.1),
        ("drift_alarm", 1.1),
    ],
)
def test_senseless_values_are_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        DecodeConfig(**{field: value})  # type: ignore[arg-type]
