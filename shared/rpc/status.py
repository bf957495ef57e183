"""Errors on the wire: the error tree as gRPC statuses with google.rpc details, and back.

`ErrorInfo.reason` is the code that REST clients see too; `BadRequest` names the offending field;
`RetryInfo` says when a retry makes sense. Details never carry anything but the error's message.
"""

from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from shared import errors
from shared.errors import TandemError

DOMAIN = "tandem"
"""`ErrorInfo.domain` of all our errors."""

MAX_MESSAGE_CHARS = 1_000
"""Longer messages are cut: statuses travel in headers, which are small."""

NEUTRAL_MESSAGE = "the server failed in a way it did not expect: this is a defect; see its log"
"""All a caller learns of an unforeseen exception."""

_CLASS_KEY = "class"

_REFUSED = "Connection refused"  # as the operating system words it, passed on by grpc

_Code = grpc.StatusCode

# The first entry that an error is an instance of decides; subclasses stand before their bases.
_CODES: tuple[tuple[type[TandemError], grpc.StatusCode], ...] = (
    (errors.ModelNotFoundError, _Code.NOT_FOUND),
    (errors.InvalidRequestError, _Code.INVALID_ARGUMENT),
    (errors.AuthenticationError, _Code.UNAUTHENTICATED),
    (errors.PermissionDeniedError, _Code.PERMISSION_DENIED),
    (errors.ConfigError, _Code.FAILED_PRECONDITION),
    (errors.ModelLoadError, _Code.FAILED_PRECONDITION),
    (errors.RateLimitError, _Code.RESOURCE_EXHAUSTED),
    (errors.OverloadedError, _Code.RESOURCE_EXHAUSTED),
    (errors.UnavailableError, _Code.UNAVAILABLE),
    (errors.DeadlineError, _Code.DEADLINE_EXCEEDED),
    (errors.CancelledError, _Code.CANCELLED),
    (errors.HandoffError, _Code.ABORTED),
)

# Statuses that no peer of ours described: made by gRPC itself or by something between.
_BARE: dict[grpc.StatusCode, type[TandemError]] = {
    _Code.INVALID_ARGUMENT: errors.InvalidRequestError,
    _Code.OUT_OF_RANGE: errors.InvalidRequestError,
    _Code.NOT_FOUND: errors.InvalidRequestError,
    _Code.UNAUTHENTICATED: errors.AuthenticationError,
    _Code.PERMISSION_DENIED: errors.PermissionDeniedError,
    _Code.RESOURCE_EXHAUSTED: errors.OverloadedError,
    _Code.UNAVAILABLE: errors.UnavailableError,
    _Code.DEADLINE_EXCEEDED: errors.DeadlineError,
    _Code.CANCELLED: errors.CancelledError,
    _Code.ABORTED: errors.HandoffError,
}


def grpc_code(error: TandemError) -> grpc.StatusCode:
    """The gRPC code of an error."""
    for cls, code in _CODES:
        if isinstance(error, cls):
            return code
    return _Code.INTERNAL


def to_status(error: TandemError) -> status_pb2.Status:
    """An error as google.rpc.Status with its details."""
    message = error.message[:MAX_MESSAGE_CHARS]
    info = error_details_pb2.ErrorInfo(
        reason=error.error_code, domain=DOMAIN, metadata={_CLASS_KEY: type(error).__name__}
    )
    status = status_pb2.Status(
        code=grpc_code(error).value[0], message=message, details=[_packed(info)]
    )
    if error.param is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.param, description=message
        )
        status.details.append(_packed(error_details_pb2.BadRequest(field_violations=[violation])))
    if error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(round(error.retry_after_s * 1e9))
        status.details.append(_packed(error_details_pb2.RetryInfo(retry_delay=delay)))
    return status


def from_status(status: status_pb2.Status) -> TandemError | None:
    """The error a peer of ours described, or None when the details are not ours."""
    info = error_details_pb2.ErrorInfo()
    bad_request = error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    param: str | None = None
    retry_after_s: float | None = None
    try:
        for detail in status.details:
            if detail.Unpack(info):
                continue
            if detail.Unpack(bad_request) and bad_request.field_violations:
                param = bad_request.field_violations[0].field
            elif detail.Unpack(retry):
                retry_after_s = retry.retry_delay.ToNanoseconds() / 1e9
    except DecodeError:
        return None
    if info.domain != DOMAIN:
        return None
    cls = _classes().get(info.metadata.get(_CLASS_KEY, ""))
    if cls is None:
        cls = _BARE.get(_code_of(status.code), errors.InternalError)
    return cls(status.message, code=info.reason, param=param, retry_after_s=retry_after_s)


def error_from_rpc(error: grpc.RpcError) -> TandemError:
    """The error behind a failed call: what the peer described, or what its code suggests."""
    try:
        status = rpc_status.from_call(error)
    except (ValueError, DecodeError):
        status = None
    described = from_status(status) if status is not None else None
    if described is not None:
        return described
    code = error.code()
    cls = _BARE.get(code, errors.InternalError)
    if cls is errors.UnavailableError and _REFUSED in (error.details() or ""):
        cls = errors.UnreachableError
    advice = (
        "the other side is slow, or the answer is long: ask for less or allow more time"
        if cls is errors.DeadlineError
        else "see the other side's log and whether it is alive"
    )
    return cls(f"a call ended with {code.name}: {error.details() or 'no details'}; {advice}")


async def abort_with(context: grpc.aio.ServicerContext[Any, Any], error: TandemError) -> NoReturn:
    """Ends a call with an error; always raises grpc's own abort exception."""
    status = rpc_status.to_status(to_status(error))
    await context.abort(status.code, status.details, status.trailing_metadata)
    raise AssertionError("abort returned")


def _classes() -> dict[str, type[TandemError]]:
    found: dict[str, type[TandemError]] = {}
    queue: list[type[TandemError]] = [TandemError]
    while queue:
        cls = queue.pop()
        found[cls.__name__] = cls
        queue.extend(cls.__subclasses__())
    return found


def _code_of(number: int) -> grpc.StatusCode:
    for code in grpc.StatusCode:
        if code.value[0] == number:
            return code
    return _Code.UNKNOWN


def _packed(
    message: error_details_pb2.ErrorInfo
    | error_details_pb2.BadRequest
    | error_details_pb2.RetryInfo,
) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed
