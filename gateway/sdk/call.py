"""One call, ready to be made: its request, its metadata and its tries."""

import random
import uuid
from dataclasses import dataclass, field

from gateway.sdk.attempts import Attempts
from gateway.sdk.params import GenerateParams, request_of
from gateway.sdk.prompt import Prompt
from gateway.sdk.settings import ClientSettings
from protos.tandem.v1 import inference_pb2
from shared.errors import InvalidRequestError

_Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCall:
    """What every try of a call sends."""

    request: inference_pb2.GenerateRequest
    """The request."""
    request_id: str
    """Its name."""
    metadata: _Metadata = field(repr=False)
    """Key, request id and trace."""
    attempts: Attempts
    """Its tries; they count from now."""


def prepared(
    settings: ClientSettings, prompt: Prompt, params: GenerateParams, *, jitter: random.Random
) -> PreparedCall:
    """Makes a call of what the caller asked for.

    Raises:
        InvalidRequestError: something that cannot be written.
        TypeError: an argument that is none, or of another type.
    """
    request_id = params.get("request_id") or uuid.uuid4().hex
    named = {
        "x-request-id": request_id,
        "traceparent": params.get("traceparent", ""),
        "tracestate": params.get("tracestate", ""),
    }
    return PreparedCall(
        request=request_of(prompt, params),
        request_id=request_id,
        metadata=(*key_metadata(settings), *_metadata(named)),
        attempts=Attempts(
            settings.retry, timeout_s=params.get("timeout_s", settings.timeout_s), jitter=jitter
        ),
    )


def key_metadata(settings: ClientSettings) -> _Metadata:
    """The API key as a call carries it."""
    bearer = f"Bearer {settings.api_key}" if settings.api_key else ""
    return _metadata({"authorization": bearer})


def _metadata(values: dict[str, str]) -> _Metadata:
    for key, value in values.items():
        if not (value.isascii() and value.isprintable()):
            raise InvalidRequestError(
                f"{key} has characters that no call can carry; use printable ASCII", param=key
            )
    return tuple((key, value) for key, value in values.items() if value)
