import pytest

from deploy.ready import parse_ready
from shared.errors import InternalError


def test_worker_and_gateway_lines_are_read():
    worker = parse_ready(
        'TANDEM_READY {"role": "decode", "worker_id": "d", "address": "a:1", "admin": "a:2"}\n'
    )
    assert worker is not None
    assert (worker.role, worker.address, worker.admin, worker.rest) == ("decode", "a:1", "a:2", "")
    gateway = parse_ready(
        'TANDEM_READY {"role": "gateway", "worker_id": "g", "admin": "a:3", "rest": "a:4", '
        '"grpc": "a:5"}'
    )
    assert gateway is not None
    assert (gateway.rest, gateway.grpc) == ("a:4", "a:5")


def test_other_lines_are_none():
    assert parse_ready("loading weights") is None
    assert parse_ready("") is None


@pytest.mark.parametrize("text", ["{", "[]", '{"role": "decode"}', "null"])
def test_a_broken_ready_line_is_an_error(text):
    with pytest.raises(InternalError, match="ready line"):
        parse_ready(f"TANDEM_READY {text}")
