"""gRPC: `InferenceService.Generate` under gevent. One channel serves all requests of a run."""

from __future__ import annotations  # grpc's generic types exist for the type checker only

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import gevent
import grpc
import grpc.experimental.gevent

from loadtest.load.dialogue import Dialogue
from loadtest.load.exchange import Exchange
from loadtest.load.outcome import Failure
from loadtest.load.overrides import NO_OVERRIDES, Overrides
from loadtest.load.prompts import Prompt
from loadtest.load.rpc_dialogue import dialogue_fields
from protos.tandem.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from shared.wire.options import options_to_pb

_UNFINISHED = (common_pb2.FINISH_REASON_UNSPECIFIED, common_pb2.FINISH_REASON_ERROR)


class GrpcClient:
    """Streams answers. The first request pays for the channel's connection.

    Args:
        address: host:port.
        secure: TLS by the system's authorities.
        model: served model.
        timeout_s: longest time of a request.
        overrides: of the profile, in every request.
        api_key: bearer token; empty: none.
    """

    def __init__(
        self,
        address: str,
        *,
        secure: bool,
        model: str,
        timeout_s: float,
        overrides: Overrides = NO_OVERRIDES,
        api_key: str = "",
    ) -> None:
        grpc.experimental.gevent.init_gevent()
        self._channel = (
            grpc.secure_channel(address, grpc.ssl_channel_credentials())
            if secure
            else grpc.insecure_channel(address)
        )
        # The channel is kept: grpc may close one that nothing refers to (grpc/grpc#12531).
        self._stub = inference_pb2_grpc.InferenceServiceStub(self._channel)
        self._model = model
        self._timeout_s = timeout_s
        self._options = options_to_pb(overrides.options)
        self._metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()

    def prepared(self, prompt: Prompt, answer_tokens: int) -> Callable[[Exchange], None]:
        """Builds a request's message."""
        asked = {"token_ids": inference_pb2.TokenIds(ids=prompt.token_ids), "ignore_eos": True}
        return self._sender(asked, answer_tokens)

    def prepared_dialogue(
        self, dialogue: Dialogue, answer_tokens: int
    ) -> Callable[[Exchange], None]:
        """Builds the message of a conversation's next turn."""
        return self._sender(dialogue_fields(dialogue), answer_tokens)

    def _sender(self, asked: Mapping[str, Any], answer_tokens: int) -> Callable[[Exchange], None]:
        message = inference_pb2.GenerateRequest(
            model=self._model,
            sampling=common_pb2.SamplingParams(temperature=0, top_p=1, repetition_penalty=1),
            stop=common_pb2.StopConditions(max_tokens=answer_tokens),
            options=self._options,
            **asked,
        )
        return lambda exchange: self._ask(message, exchange)

    def _ask(self, message: inference_pb2.GenerateRequest, exchange: Exchange) -> None:
        kind = exchange.ticket.request.kind
        exchange.begin()
        call = self._stub.Generate(message, timeout=self._timeout_s, metadata=self._metadata)
        goes = None
        if kind.leave_after_s is not None:
            goes = gevent.spawn_later(kind.leave_after_s, _leave, call, exchange)
        try:
            for response in call:
                _note(response, exchange)
                if kind.pause_s:
                    gevent.sleep(kind.pause_s)
            exchange.whole()
        except grpc.RpcError as error:
            exchange.fail(_failure_of(error), str(error.details()))
        finally:
            exchange.end()
            call.cancel()
            if goes is not None:
                goes.kill()


def secure_url(url: str) -> bool:
    """Whether a URL asks for TLS."""
    return urlsplit(url).scheme == "https"


def _leave(call: grpc.Call, exchange: Exchange) -> None:
    exchange.leave()
    call.cancel()


def _note(response: inference_pb2.GenerateResponse, exchange: Exchange) -> None:
    event = response.WhichOneof("event")
    if event == "delta":
        exchange.text(response.delta.text)
        for part in response.delta.tool_calls:
            exchange.call_part(part.index, id=part.id, name=part.name, arguments=part.arguments)
    elif event == "finished":
        if response.finished.reason == common_pb2.FINISH_REASON_ERROR:
            exchange.fail(Failure.ERROR_FRAME, "the answer finished with an error")
        if response.finished.reason not in _UNFINISHED:
            exchange.finish_reason()
        usage = response.finished.usage
        if response.finished.HasField("report"):
            report = response.finished.report
            exchange.work(
                kept_tokens=report.kept_tokens, attended=report.attended, dense=report.dense
            )
        exchange.usage(prompt_tokens=usage.prompt_tokens, answer_tokens=usage.completion_tokens)


def _failure_of(error: grpc.RpcError) -> str:
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Failure.TIMEOUT
    return f"grpc_{error.code().name.lower()}"
