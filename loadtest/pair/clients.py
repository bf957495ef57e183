"""Two clients that time a streamed answer from outside: HTTP with server-sent events, and gRPC."""

import http.client
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

import orjson

from gateway.sdk.client import TandemClient
from gateway.sdk.params import GenerateParams
from gateway.sdk.results import Delta, Finished, Report
from loadtest.load.sse import SseReader
from loadtest.pair.plan import GRPC, HTTP, PairArm
from shared.errors import TandemError, TransportError, UnavailableError

_READ_BYTES = 1 << 16
_TIMEOUT_S = 600.0
_FRESH_S = 2.0
"""Servers close connections that were idle for longer than some seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request."""

    token_ids: Sequence[int]
    """The prompt."""
    new_tokens: int
    """Tokens of the answer; end-of-text does not end it."""
    arm: PairArm
    """Methods."""
    trace: bool = False
    """The report tells when every part was computed and moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One answer as its client saw it; seconds since the request was sent."""

    ttft_s: float
    """First token."""
    second_s: float
    """Second token, the first that the decode side made."""
    seconds: float
    """End."""
    tokens: int
    """Generated tokens."""
    report: Mapping[str, Any] = field(repr=False)
    """The `tandem` object of the response."""

    @property
    def tokens_per_s(self) -> float:
        """Tokens after the first, a second of the time after the first."""
        after = self.seconds - self.ttft_s
        return (self.tokens - 1) / after if after > 0 else 0.0

    def phase_s(self, name: str) -> float:
        """Seconds of a phase, measured by the process that ran it; 0 where it did not."""
        return float(self.report["phases_ms"].get(name, 0.0)) / 1000


class PairClient(Protocol):
    """Asks a gateway; threads may share it."""

    @property
    def name(self) -> str:
        """Of the protocol."""

    def ask(self, question: Question) -> Timed:
        """Sends a request and times its answer.

        Raises:
            TandemError: it was refused, failed, or ended early.
        """

    def close(self) -> None:
        """Drops connections."""


@dataclass(frozen=True, slots=True)
class _Idle:
    connection: http.client.HTTPConnection
    since: float


class HttpClient:
    """Streams completions over HTTP/1.1; connections are kept, as those of pooled clients are.

    Args:
        url: of the gateway.
    """

    name = HTTP

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        assert address.hostname is not None, "a URL names a host"
        self._host, self._port = address.hostname, address.port or 80
        self._idle: deque[_Idle] = deque()

    def ask(self, question: Question) -> Timed:
        """See `PairClient.ask`."""
        body = orjson.dumps(_rest_body(question))
        connection = self._take()
        try:
            if connection.sock is None:
                connection.connect()
            timed = self._timed(connection, body)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise UnavailableError(
                f"{self._host}:{self._port} cannot be reached or broke off ({error}); "
                "see the gateway's log"
            ) from error
        except TandemError:
            connection.close()
            raise
        self._idle.append(_Idle(connection, time.monotonic()))
        return timed

    def close(self) -> None:
        """Drops idle connections."""
        while self._idle:
            self._idle.pop().connection.close()

    def _take(self) -> http.client.HTTPConnection:
        """An idle connection that its server has surely not closed yet, or a new one."""
        while self._idle:
            idle = self._idle.pop()
            if time.monotonic() - idle.since < _FRESH_S:
                return idle.connection
            idle.connection.close()
        return http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)

    def _timed(self, connection: http.client.HTTPConnection, body: bytes) -> Timed:
        began = time.perf_counter()
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise UnavailableError(
                f"the gateway answered {response.status}: "
                f"{response.read()[:500].decode(errors='replace')}"
            )
        reader, arrivals = SseReader(), _Arrivals(began)
        last: Mapping[str, Any] = {}
        while data := response.read1(_READ_BYTES):
            now = time.perf_counter()
            for event in reader.feed(data):
                if event == "[DONE]":
                    continue
                chunk = orjson.loads(event)
                if "error" in chunk:
                    raise TandemError(str(chunk["error"]["message"]))
                if chunk.get("tandem"):
                    last = chunk
                else:
                    arrivals.note(now)
        return arrivals.timed(
            tokens=last.get("usage", {}).get("completion_tokens", 0),
            report=last.get("tandem", {}),
        )


class GrpcClient:
    """Streams answers by the library that applications use.

    Args:
        address: host:port of the gateway's gRPC server.
    """

    name = GRPC

    def __init__(self, address: str) -> None:
        self._client = TandemClient(address, timeout_s=_TIMEOUT_S)

    def ask(self, question: Question) -> Timed:
        """See `PairClient.ask`."""
        params = grpc_params(question)
        arrivals = _Arrivals(time.perf_counter())
        tokens, report = 0, None
        with self._client.stream(question.token_ids, **params) as stream:
            for event in stream:
                if isinstance(event, Delta) and not event.tokens:
                    continue
                arrivals.note(time.perf_counter())
                if isinstance(event, Finished):
                    tokens, report = event.usage.completion_tokens, event.report
        return arrivals.timed(tokens=tokens, report={} if report is None else _rest_form(report))

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()


class _Arrivals:
    """When the messages of a stream came: some with tokens each, and the one of its end.

    Over HTTP a token whose text is not whole yet comes with a later one, which is rare.
    """

    def __init__(self, began: float) -> None:
        self._began = began
        self._moments: list[float] = []

    def note(self, now: float) -> None:
        """A message came."""
        self._moments.append(now - self._began)

    def timed(self, *, tokens: int, report: Mapping[str, Any]) -> Timed:
        if tokens < 2 or len(self._moments) < 2 or not report:  # noqa: PLR2004
            raise TransportError(
                f"the answer came in {len(self._moments)} messages and {tokens} tokens, its "
                f"report is {'there' if report else 'missing'}: the stream broke off, or the "
                "answer is too short to have times; see the gateway's log"
            )
        return Timed(
            ttft_s=self._moments[0],
            second_s=self._moments[1],
            seconds=self._moments[-1],
            tokens=tokens,
            report=report,
        )


def grpc_params(question: Question) -> GenerateParams:
    """What a question is in arguments of the gRPC client."""
    params: GenerateParams = {
        "max_tokens": question.new_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "mode": question.arm.mode,
        "trace": question.trace,
    }
    if question.arm.keep_rate is not None:
        params["keep_rate"] = question.arm.keep_rate
    return params


def _rest_body(question: Question) -> dict[str, Any]:
    options: dict[str, Any] = {"mode": question.arm.mode, "trace": question.trace}
    if question.arm.keep_rate is not None:
        options["keep_rate"] = question.arm.keep_rate
    return {
        "prompt": list(question.token_ids),
        "max_tokens": question.new_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tandem": options,
    }


def _rest_form(report: Report) -> dict[str, Any]:
    """The report of a gRPC answer as REST would have told it."""
    return {
        "ttft_ms": 1000 * report.ttft_s,
        "tokens_per_s": report.tokens_per_s,
        "phases_ms": {name: 1000 * seconds for name, seconds in report.phases_s.items()},
        "prompt_tokens": report.prompt_tokens,
        "kept_tokens": report.kept_tokens,
        "kv_bytes": report.kv_bytes,
        "transport": report.transport,
        "attended_ratio": report.attended_ratio,
        "route": report.route,
        **({} if report.trace is None else {"trace": report.trace.to_json()}),
    }
