"""Collectors that cannot be reached."""

import socket
from collections.abc import Iterator

import pytest


@pytest.fixture(params=["absent", "silent"])
def dead_collector(request: pytest.FixtureRequest) -> Iterator[str]:
    """Address of one that is not there, and of one that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = 1 if request.param == "absent" else silent.getsockname()[1]
        yield f"http://127.0.0.1:{port}"
