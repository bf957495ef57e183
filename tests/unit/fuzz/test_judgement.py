"""What a campaign calls a finding: a fuzz whose checks cannot fail proves nothing."""

import json
from random import Random

import grpc
import pytest

from tests.fuzz import http2_wires, http_wires, json_bodies, rpc_calls
from tests.fuzz.exchange import judge
from tests.fuzz.fleet import complaints_in

GOOD = {"error": {"message": "m", "type": "t", "param": None, "code": "c"}}
DEFECT = {"error": {"message": "m", "type": "t", "param": None, "code": "internal_error"}}
STACK = 'role   Traceback (most recent call last):\nrole     File "x"\nrole   {}: gone'


def answer(status: int, body: object, *, kind: str = "application/json") -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(raw)}\r\n\r\n"
    return head.encode() + raw


@pytest.mark.parametrize(
    ("raw", "fine"),
    [
        (b"", True),
        (answer(400, GOOD), True),
        (answer(503, GOOD), True),
        (answer(200, b"data: {}\n\ndata: [DONE]\n\n", kind="text/event-stream"), True),
        (answer(500, GOOD), False),
        (answer(502, GOOD), False),
        (answer(400, DEFECT), False),
        (answer(400, {"error": "text"}), False),
        (answer(400, {"error": {**GOOD["error"], "code": None}}), False),
        (answer(400, b"Bad Request", kind="text/plain"), False),
        (answer(200, b'{"a": NaN}'), False),
        (answer(200, b"data: {\n\n", kind="text/event-stream"), False),
        (answer(200, {}) + answer(200, {}), False),
        (b"\x00\x00\x12\x04", False),
    ],
)
def test_answers(raw: bytes, fine: bool) -> None:
    assert (judge(raw, max_answers=1).finding == "") is fine


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_statuses(code: grpc.StatusCode) -> None:
    assert bool(rpc_calls.judged(code, "x").finding) is (code in rpc_calls.NEVER)


@pytest.mark.parametrize(
    ("log", "count"),
    [
        (['role   {"event": "x", "level": "info"}', "role   plain"], 0),
        (['role   {"event": "x", "level": "error"}'], 1),
        (['role   {"event": "Invalid encoding on b\'x\'", "level": "error"}'], 0),
        (STACK.format("ValueError").splitlines(), 1),
        (STACK.format("grpc._cython.cygrpc.ExecuteBatchError").splitlines(), 0),
        (
            [
                'role   {"event": "x", "level": "error"}',
                'role   {"event": "Invalid encoding on b\'x\'", "level": "error"}',
            ],
            1,
        ),
    ],
)
def test_logs(log: list[str], count: int) -> None:
    assert len(complaints_in(log)) == count


def test_no_input_takes_a_worker_out_of_service() -> None:
    assert rpc_calls.obeyed(rpc_calls.DRAIN, b"")
    assert not rpc_calls.obeyed(rpc_calls.DRAIN, b"\xff")
    assert not rpc_calls.obeyed("/tandem.v1.ControlService/GetLoad", b"")


def test_an_input_depends_on_its_seed_alone() -> None:
    for index in range(30):
        first, again = Random(f"1:{index}"), Random(f"1:{index}")
        assert json_bodies.wire(first, "tiny") == json_bodies.wire(again, "tiny")
        for name in sorted(http_wires.MAKERS):
            assert http_wires.MAKERS[name](first) == http_wires.MAKERS[name](again)
        for name in sorted(http2_wires.MAKERS):
            assert http2_wires.MAKERS[name](first, "/x") == http2_wires.MAKERS[name](again, "/x")


def test_every_service_is_called() -> None:
    called = {method.service for methods in rpc_calls.OWN_METHODS.values() for method in methods}
    assert called == {method.service for method in rpc_calls.METHODS}
