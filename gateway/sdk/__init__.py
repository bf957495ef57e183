"""Python client of the gateway's gRPC API, for threads and for event loops.

`TandemClient("127.0.0.1:8001")` and `AsyncTandemClient(...)` have `generate`, `stream` and `ready`.
Importing it loads grpc and the protos, and nothing of the gateway's server.
"""

from gateway.sdk.aio_client import AsyncTandemClient
from gateway.sdk.aio_stream import AsyncGenerationStream
from gateway.sdk.client import TandemClient
from gateway.sdk.params import GenerateParams
from gateway.sdk.prompt import Message, Prompt, Tool, ToolCall
from gateway.sdk.results import (
    Answer,
    Delta,
    Event,
    Finished,
    Generation,
    Report,
    ToolCallDelta,
    Usage,
)
from gateway.sdk.settings import Retry, Tls
from gateway.sdk.stream import GenerationStream
from shared.errors import (
    AuthenticationError,
    CancelledError,
    ConfigError,
    ContextLengthError,
    DeadlineError,
    HandoffError,
    InternalError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    PermissionDeniedError,
    RateLimitError,
    TandemError,
    UnavailableError,
    UnreachableError,
)
from shared.types.page_summary import PageSummary
from shared.types.sampling import FinishReason, SampledToken
from shared.types.trace import RequestTrace

__all__ = [
    "Answer",
    "AsyncGenerationStream",
    "AsyncTandemClient",
    "AuthenticationError",
    "CancelledError",
    "ConfigError",
    "ContextLengthError",
    "DeadlineError",
    "Delta",
    "Event",
    "FinishReason",
    "Finished",
    "GenerateParams",
    "Generation",
    "GenerationStream",
    "HandoffError",
    "InternalError",
    "InvalidRequestError",
    "Message",
    "ModelNotFoundError",
    "OverloadedError",
    "PageSummary",
    "PermissionDeniedError",
    "Prompt",
    "RateLimitError",
    "Report",
    "RequestTrace",
    "Retry",
    "SampledToken",
    "TandemClient",
    "TandemError",
    "Tls",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "UnavailableError",
    "UnreachableError",
    "Usage",
]
