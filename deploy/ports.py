"""The ports that `tandem up` is about to take, looked at before anything is started."""

from collections.abc import Iterator

from deploy.config import UpConfig
from shared.errors import ConfigError
from shared.telemetry.ports import bind_socket

_HOST = "127.0.0.1"


def check_ports(config: UpConfig) -> None:
    """Checks that every port is free and that no two servers want the same one.

    Raises:
        ConfigError: code `port_in_use` for a busy port; the setting is named.
    """
    taken: dict[int, str] = {}
    for setting, port in _wanted(config):
        if port in taken:
            raise ConfigError(
                f"{taken[port]} and {setting} both come to port {port}: ports count up per worker; "
                "move one of them apart, or use 0 for free ones"
            )
        taken[port] = setting
        try:
            bind_socket(_HOST, port).close()
        except ConfigError as error:
            raise ConfigError(
                f"{setting}: {error.message}", code=error.error_code, param=setting
            ) from error


def _wanted(config: UpConfig) -> Iterator[tuple[str, int]]:
    """Setting and port of every server; free ones are left out."""
    rows = (
        ("--rest-port", config.rest_port, 1),
        ("--grpc-port", config.grpc_port, 1),
        ("--gateway-admin-port", config.gateway_admin_port, 1),
        ("--prefill-port", config.prefill_port, config.prefill),
        ("--prefill-admin-port", config.prefill_admin_port, config.prefill),
        ("--decode-port", config.decode_port, config.decode),
        ("--decode-admin-port", config.decode_admin_port, config.decode),
    )
    for setting, first, count in rows:
        if first:
            yield from ((setting, first + index) for index in range(count))
