import dataclasses
import socket

import pytest

from deploy.config import FREE_PORTS, UpConfig
from deploy.ports import check_ports
from shared.config.exit_codes import ExitCode, exit_code_for
from shared.errors import ConfigError


def test_free_ports_are_not_looked_at():
    check_ports(FREE_PORTS)


def test_a_busy_port_names_its_setting():
    with socket.create_server(("127.0.0.1", 0)) as server:
        config = dataclasses.replace(FREE_PORTS, decode_port=server.getsockname()[1])
        with pytest.raises(ConfigError, match=r"^--decode-port: .*in use") as caught:
            check_ports(config)
    assert exit_code_for(caught.value) == ExitCode.PORT_BUSY


def test_ports_that_count_up_into_another_are_refused(monkeypatch):
    monkeypatch.setattr("deploy.ports.bind_socket", lambda _host, _port: socket.socket())
    with pytest.raises(ConfigError, match="--prefill-admin-port and --decode-admin-port both"):
        check_ports(UpConfig(prefill=101, decode=1, decode_port=9500))
