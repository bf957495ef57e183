"""A small streaming client of the REST API: what `tandem chat` and `tandem demo` speak.

Times are measured here, at the client: TTFT runs from just before the request is sent to the first
non-empty text.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from shared.errors import InvalidRequestError, TandemError, TransportError, UnavailableError

_DATA = "data: "
_DONE = "[DONE]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A finished answer."""

    text: str
    """All of it."""
    finish_reason: str
    """stop or length."""
    ttft_s: float
    """Seconds to the first text, seen by this client."""
    seconds: float
    """Seconds to the end."""
    usage: Mapping[str, int]
    """Token counts."""
    report: Mapping[str, object]
    """The `tandem` object of the last usage chunk."""


def stream_chat(
    client: httpx.Client, body: Mapping[str, object], *, on_text: Callable[[str], None]
) -> Answer:
    """Posts a chat completion, calls `on_text` for each piece and returns the whole.

    Raises:
        TandemError: the server refused, the stream broke, or it ended without a finish reason.
    """
    request = {**body, "stream": True, "stream_options": {"include_usage": True}}
    parts: list[str] = []
    first = finish = None
    usage: Mapping[str, int] = {}
    report: Mapping[str, object] = {}
    began = time.perf_counter()
    try:
        with client.stream("POST", "/v1/chat/completions", json=request) as response:
            if response.status_code != httpx.codes.OK:
                response.read()
                raise refusal_of(response)
            for chunk in _chunks(response):
                for choice in chunk["choices"]:
                    text = choice["delta"].get("content") or ""
                    if text:
                        first = first if first is not None else time.perf_counter()
                        parts.append(text)
                        on_text(text)
                    finish = choice["finish_reason"] or finish
                if chunk.get("usage"):
                    usage, report = chunk["usage"], chunk.get("tandem") or {}
    except httpx.TransportError as error:
        raise unreachable(client, error) from error
    if finish is None:
        raise TransportError(
            "the stream ended without a finish reason: the server went away; try again"
        )
    ended = time.perf_counter()
    return Answer(
        text="".join(parts),
        finish_reason=finish,
        ttft_s=(first if first is not None else ended) - began,
        seconds=ended - began,
        usage=usage,
        report=report,
    )


def served_models(client: httpx.Client) -> list[str]:
    """Names of the served models.

    Raises:
        UnavailableError: nothing answers.
    """
    try:
        response = client.get("/v1/models")
    except httpx.TransportError as error:
        raise unreachable(client, error) from error
    if response.status_code != httpx.codes.OK:
        raise refusal_of(response)
    return [str(model["id"]) for model in response.json()["data"]]


def _chunks(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if not line.startswith(_DATA):
            continue
        payload = line.removeprefix(_DATA)
        if payload == _DONE:
            return
        try:
            chunk = json.loads(payload)
        except ValueError as error:
            raise TransportError(
                f"the stream carried {payload[:80]!r}, which is no JSON: is this a Tandem gateway?"
            ) from error
        if "error" in chunk:
            raise TandemError(str(chunk["error"]["message"]), code=str(chunk["error"]["code"]))
        yield chunk


def unreachable(client: httpx.Client, error: httpx.TransportError) -> UnavailableError:
    """The error of a gateway that does not answer."""
    return UnavailableError(
        f"{client.base_url} cannot be reached ({error}); start the servers with `tandem up` "
        "or give --url"
    )


def refusal_of(response: httpx.Response) -> TandemError:
    """The error that an answer with another status than 200 stands for."""
    try:
        error = response.json()["error"]
        message, code = str(error["message"]), str(error["code"])
    except (ValueError, KeyError, TypeError):
        return UnavailableError(
            f"status {response.status_code} without the API's error body: "
            f"{response.text[:200]!r}; is the URL a Tandem gateway?"
        )
    if response.status_code == httpx.codes.UNAUTHORIZED:
        message += "; this command takes the key from TANDEM_API_KEY"
    return InvalidRequestError(f"{message} (status {response.status_code}, code {code})", code=code)
