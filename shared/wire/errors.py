"""Errors inside messages (a stream's last event), as opposed to gRPC statuses (`shared.rpc`)."""

from protos.tandem.v1 import common_pb2
from shared.errors import (
    AuthenticationError,
    CancelledError,
    ConfigError,
    ContextLengthError,
    DeadlineError,
    HandoffError,
    InternalError,
    InvalidRequestError,
    ModelLoadError,
    ModelNotFoundError,
    OverloadedError,
    PermissionDeniedError,
    RequestTooLargeError,
    TandemError,
    UnavailableError,
)

_CLASSES: tuple[type[TandemError], ...] = (
    ContextLengthError,
    ModelNotFoundError,
    RequestTooLargeError,
    InvalidRequestError,
    AuthenticationError,
    PermissionDeniedError,
    ConfigError,
    ModelLoadError,
    OverloadedError,
    DeadlineError,
    CancelledError,
    HandoffError,
    UnavailableError,
)
_BY_CODE: dict[str, type[TandemError]] = {cls.code: cls for cls in _CLASSES} | {
    "missing_required_parameter": InvalidRequestError,
    "chat_template_missing": InvalidRequestError,
    "invalid_json_schema": InvalidRequestError,
    "grammar_too_complex": InvalidRequestError,
    "no_prefill_worker": UnavailableError,
    "no_decode_worker": UnavailableError,
    "draining": UnavailableError,
    "handoff_token_refused": HandoffError,
}


def class_for_code(code: str) -> type[TandemError]:
    """The error class that a client-visible code stands for; InternalError for unknown codes."""
    return _BY_CODE.get(code, InternalError)


def error_to_pb(error: TandemError) -> common_pb2.ErrorDetail:
    """Converts an error."""
    retry = error.retry_after_s
    return common_pb2.ErrorDetail(
        code=error.error_code,
        message=error.message,
        param=error.param or "",
        retry_after_ms=0 if retry is None else max(1, round(retry * 1000)),
    )


def error_from_pb(message: common_pb2.ErrorDetail) -> TandemError:
    """Rebuilds the error with the class that its code stands for."""
    return class_for_code(message.code)(
        message.message,
        code=message.code or None,
        param=message.param or None,
        retry_after_s=message.retry_after_ms / 1000 if message.retry_after_ms else None,
    )
