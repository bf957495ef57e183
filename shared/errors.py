"""The one error tree.

TandemError
├── InvalidRequestError        the caller's mistake; never retried
│   ├── ContextLengthError
│   ├── ModelNotFoundError
│   ├── RequestTooLargeError
│   └── UploadTimeoutError     the body did not arrive in time
├── AuthenticationError        who is asking cannot be told; no key, or one that is not valid
├── PermissionDeniedError      who is asking may not
├── ConfigError                a setting is wrong; the process does not start
├── ModelLoadError             weights, tokenizer or configuration cannot be read
├── RateLimitError             the caller has used what its key may use; retry later
├── OverloadedError            no room now; retry later
├── UnavailableError           no worker, or it drains
│   └── UnreachableError       nobody listens at its address
├── DeadlineError              the request's time is over
├── CancelledError             the caller went away
├── HandoffError               a KV handoff failed; another attempt may succeed
│   ├── ManifestError          what landed is not what was promised
│   ├── StaleWriteError        slot generation, lease or state does not match
│   └── TransportError         bytes did not arrive
└── InternalError              our defect

Every error carries the `code` that clients see and a message of three parts: what happened,
the likely cause, what to do. `shared.rpc.status` maps the tree to gRPC codes,
`gateway.errors` to HTTP statuses.
"""

from typing import ClassVar


class TandemError(Exception):
    """Root of all errors raised on purpose.

    Args:
        message: what happened, the likely cause, what to do.
        code: overrides the class's code.
        param: dotted path of the offending request field.
        retry_after_s: seconds after which a retry makes sense; None when it does not.
    """

    code: ClassVar[str] = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.error_code = code if code is not None else type(self).code
        self.param = param
        self.retry_after_s = retry_after_s


class InvalidRequestError(TandemError):
    """The caller's mistake."""

    code: ClassVar[str] = "invalid_value"


class ContextLengthError(InvalidRequestError):
    """Prompt and answer do not fit the model's context."""

    code: ClassVar[str] = "context_length_exceeded"


class ModelNotFoundError(InvalidRequestError):
    """No such model is served."""

    code: ClassVar[str] = "model_not_found"


class RequestTooLargeError(InvalidRequestError):
    """The body is over the limit."""

    code: ClassVar[str] = "request_too_large"


class UploadTimeoutError(InvalidRequestError):
    """The body did not arrive in time."""

    code: ClassVar[str] = "request_timeout"


class AuthenticationError(TandemError):
    """The caller showed no valid key."""

    code: ClassVar[str] = "invalid_api_key"


class PermissionDeniedError(TandemError):
    """The caller is known and may not do this."""

    code: ClassVar[str] = "permission_denied"


class ConfigError(TandemError):
    """A setting is wrong."""

    code: ClassVar[str] = "invalid_config"


class ModelLoadError(TandemError):
    """A checkpoint cannot be read."""

    code: ClassVar[str] = "model_load_failed"


class RateLimitError(TandemError):
    """The caller has used what its key may use."""

    code: ClassVar[str] = "rate_limit_exceeded"


class OverloadedError(TandemError):
    """No room now."""

    code: ClassVar[str] = "queue_full"


class UnavailableError(TandemError):
    """No worker can take the request."""

    code: ClassVar[str] = "unavailable"


class UnreachableError(UnavailableError):
    """Nobody listens at a worker's address: its process is gone."""


class DeadlineError(TandemError):
    """The request's time is over."""

    code: ClassVar[str] = "deadline_exceeded"


class CancelledError(TandemError):
    """The caller went away."""

    code: ClassVar[str] = "cancelled"


class HandoffError(TandemError):
    """A KV handoff failed."""

    code: ClassVar[str] = "kv_transfer_failed"


class ManifestError(HandoffError):
    """What landed is not what was promised."""


class StaleWriteError(HandoffError):
    """A slot, generation, lease or state does not match."""


class TransportError(HandoffError):
    """Bytes did not arrive."""


class InternalError(TandemError):
    """Our defect."""
