"""Errors as REST clients see them (the table of status, type and code)."""

import math
from dataclasses import dataclass
from typing import Any

from shared.errors import (
    AuthenticationError,
    CancelledError,
    ContextLengthError,
    DeadlineError,
    HandoffError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    PermissionDeniedError,
    RateLimitError,
    RequestTooLargeError,
    TandemError,
    UnavailableError,
    UploadTimeoutError,
)

DEFAULT_RETRY_S = 1.0

# First match wins: subclasses stand before their bases.
_STATUSES: tuple[tuple[type[TandemError], int, str], ...] = (
    (ModelNotFoundError, 404, "invalid_request_error"),
    (RequestTooLargeError, 413, "invalid_request_error"),
    (UploadTimeoutError, 408, "invalid_request_error"),
    (InvalidRequestError, 400, "invalid_request_error"),
    (AuthenticationError, 401, "authentication_error"),
    (PermissionDeniedError, 403, "permission_error"),
    (RateLimitError, 429, "rate_limit_error"),
    (OverloadedError, 429, "overloaded_error"),
    (UnavailableError, 503, "server_error"),
    (HandoffError, 502, "server_error"),
    (DeadlineError, 504, "timeout_error"),
    (CancelledError, 499, "cancelled_error"),
)


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error ready to be sent."""

    status: int
    """HTTP status."""
    body: dict[str, Any]
    """`{"error": {...}}`, also the content of an error frame."""
    headers: dict[str, str]
    """Retry headers."""


def error_body(*, message: str, kind: str, code: str, param: str | None = None) -> dict[str, Any]:
    """The one error shape; all four keys are always there."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def reply_for(error: TandemError) -> ErrorReply:
    """Status, body and headers of an error."""
    status, kind = next(
        ((status, kind) for cls, status, kind in _STATUSES if isinstance(error, cls)),
        (500, "server_error"),
    )
    body = error_body(message=_text_of(error), kind=kind, code=error.error_code, param=error.param)
    return ErrorReply(status, body, _retry_headers(status, error))


def _text_of(error: TandemError) -> str:
    # openai-python 3 shows callers the message alone, and LangChain looks for the code in it.
    if isinstance(error, ContextLengthError):
        return f"{error.message} ({error.error_code})"
    return error.message


def _retry_headers(status: int, error: TandemError) -> dict[str, str]:
    if isinstance(error, RateLimitError) and error.retry_after_s is None:
        # Above the limit by itself: official clients would try it again and again.
        return {"x-should-retry": "false"}
    if status in {429, 503}:
        wait = error.retry_after_s if error.retry_after_s is not None else DEFAULT_RETRY_S
        return {
            "retry-after": str(max(1, math.ceil(wait))),
            "retry-after-ms": str(max(1, round(wait * 1000))),
        }
    if status == 408:  # noqa: PLR2004 - an HTTP status
        return {"connection": "close"}  # what still comes belongs to a request that is over
    if status == 401:  # noqa: PLR2004 - an HTTP status
        return {"www-authenticate": "Bearer"}
    if status == 504:  # noqa: PLR2004 - an HTTP status
        return {"x-should-retry": "false"}
    return {}
