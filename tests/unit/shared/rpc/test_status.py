"""Errors keep their class, code, field and delay across the wire."""

import socket
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status
from hypothesis import given
from hypothesis import strategies as st

from shared import errors
from shared.errors import InternalError, OverloadedError, TandemError
from shared.rpc.channel import open_channel
from shared.rpc.status import (
    DOMAIN,
    MAX_MESSAGE_CHARS,
    error_from_rpc,
    from_status,
    grpc_code,
    to_status,
)

CODES = {
    "TandemError": "INTERNAL",
    "InvalidRequestError": "INVALID_ARGUMENT",
    "ContextLengthError": "INVALID_ARGUMENT",
    "ModelNotFoundError": "NOT_FOUND",
    "RequestTooLargeError": "INVALID_ARGUMENT",
    "UploadTimeoutError": "INVALID_ARGUMENT",
    "AuthenticationError": "UNAUTHENTICATED",
    "PermissionDeniedError": "PERMISSION_DENIED",
    "ConfigError": "FAILED_PRECONDITION",
    "ModelLoadError": "FAILED_PRECONDITION",
    "RateLimitError": "RESOURCE_EXHAUSTED",
    "OverloadedError": "RESOURCE_EXHAUSTED",
    "UnavailableError": "UNAVAILABLE",
    "UnreachableError": "UNAVAILABLE",
    "DeadlineError": "DEADLINE_EXCEEDED",
    "CancelledError": "CANCELLED",
    "HandoffError": "ABORTED",
    "ManifestError": "ABORTED",
    "StaleWriteError": "ABORTED",
    "TransportError": "ABORTED",
    "InternalError": "INTERNAL",
}

CLASSES = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, TandemError)
]

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)


def _as_rpc_error(status: status_pb2.Status) -> grpc.aio.AioRpcError:
    """What a client of grpc.aio sees."""
    native = rpc_status.to_status(status)
    return grpc.aio.AioRpcError(
        native.code,
        grpc.aio.Metadata(),
        grpc.aio.Metadata(*native.trailing_metadata),
        details=native.details,
    )


def test_the_table_is_complete() -> None:
    assert {cls.__name__ for cls in CLASSES} == set(CODES)


@pytest.mark.parametrize("cls", CLASSES)
def test_codes(cls: type[TandemError]) -> None:
    assert grpc_code(cls("x")).name == CODES[cls.__name__]


@given(
    cls=st.sampled_from(CLASSES),
    message=TEXT,
    code=st.none() | st.from_regex(r"[a-z_]{1,30}", fullmatch=True),
    param=st.none() | TEXT,
    retry=st.none() | st.integers(0, 10_000_000).map(lambda ms: ms / 1000),
)
def test_round_trip(cls, message: str, code: str | None, param, retry) -> None:
    before = cls(message, code=code, param=param, retry_after_s=retry)
    after = error_from_rpc(_as_rpc_error(to_status(before)))
    assert type(after) is cls
    assert after.message == message
    assert after.error_code == before.error_code
    assert after.param == param
    assert after.retry_after_s == (None if retry is None else pytest.approx(retry, abs=1e-9))


def test_details_are_the_standard_ones() -> None:
    status = to_status(OverloadedError("full", param="a.b", retry_after_s=1.5))
    info, bad, retry = (
        error_details_pb2.ErrorInfo(),
        error_details_pb2.BadRequest(),
        error_details_pb2.RetryInfo(),
    )
    for detail, target in zip(status.details, (info, bad, retry), strict=True):
        assert detail.Unpack(target)
    assert (info.reason, info.domain) == ("queue_full", DOMAIN)
    assert bad.field_violations[0].field == "a.b"
    assert retry.retry_delay.ToTimedelta().total_seconds() == 1.5


def test_long_messages_are_cut() -> None:
    status = to_status(InternalError("x" * 5_000))
    assert status.message == "x" * MAX_MESSAGE_CHARS


@pytest.mark.parametrize("code", [c for c in grpc.StatusCode if c is not grpc.StatusCode.OK])
def test_bare_statuses_become_errors(code: grpc.StatusCode) -> None:
    bare = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details="why")
    error = error_from_rpc(bare)
    assert isinstance(error, TandemError)
    assert code.name in str(error)
    assert "why" in str(error)


def test_a_class_of_a_newer_peer_falls_back_to_the_code() -> None:
    status = to_status(OverloadedError("full"))
    info = error_details_pb2.ErrorInfo()
    status.details[0].Unpack(info)
    info.metadata["class"] = "InventedLaterError"
    status.details[0].Pack(info)
    error = from_status(status)
    assert type(error) is OverloadedError
    assert error.error_code == "queue_full"
    status.code = 99
    assert type(from_status(status)) is InternalError


def test_details_of_others_and_damaged_ones_are_not_ours() -> None:
    other = any_pb2.Any()
    other.Pack(error_details_pb2.ErrorInfo(reason="x", domain="example.com"))
    assert from_status(status_pb2.Status(code=8, details=[other])) is None
    url = "type.googleapis.com/google.rpc.ErrorInfo"
    broken = any_pb2.Any(type_url=url, value=b"\xff\xff")
    assert from_status(status_pb2.Status(code=8, details=[broken])) is None
    metadata = grpc.aio.Metadata(("grpc-status-details-bin", b"\xff\xff"))
    damaged = grpc.aio.AioRpcError(
        grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.aio.Metadata(), metadata, details="d"
    )
    assert type(error_from_rpc(damaged)) is OverloadedError


async def test_a_closed_port_is_told_from_other_losses() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    channel: Any = open_channel(address)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary("/tandem.v1.Probe/UU")(b"", timeout=5)
    await channel.close()
    assert type(error_from_rpc(caught.value)) is errors.UnreachableError
