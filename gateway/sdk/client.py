"""The client for threads."""

import random
from types import TracebackType
from typing import Self, Unpack

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.sdk.call import PreparedCall, key_metadata, prepared
from gateway.sdk.channel import open_channel
from gateway.sdk.params import GenerateParams
from gateway.sdk.prompt import Prompt
from gateway.sdk.results import Generation
from gateway.sdk.settings import ClientSettings, Retry, Tls
from gateway.sdk.stream import GenerationStream, Rpc
from protos.tandem.v1 import inference_pb2_grpc
from shared.rpc.status import error_from_rpc

READY_TIMEOUT_S = 5.0
"""How long a gateway has to say whether it is ready, in seconds."""


class TandemClient:
    """A connection to a gateway; threads may share it. Close it when done.

    Args:
        address: host:port of the gateway's gRPC server.
        api_key: sent with every call.
        tls: encrypts the connection; without, it is plain text: keep it on loopback or on a
            private network then.
        timeout_s: longest life of a call, its repetitions included, in seconds; None leaves it to
            the gateway.
        retry: when a failed call is made again.

    Raises:
        ConfigError: a file of the TLS settings cannot be read.
    """

    def __init__(
        self,
        address: str,
        *,
        api_key: str = "",
        tls: Tls | None = None,
        timeout_s: float | None = None,
        retry: Retry = Retry(),  # noqa: B008  frozen
    ) -> None:
        self._settings = ClientSettings(
            address=address, api_key=api_key, tls=tls, timeout_s=timeout_s, retry=retry
        )
        self._jitter = random.Random()  # noqa: S311  spreads retries, guards nothing
        self._channel = open_channel(self._settings)
        self._stub = inference_pb2_grpc.InferenceServiceStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def generate(self, prompt: Prompt, **params: Unpack[GenerateParams]) -> Generation:
        """All answers to a prompt, whole.

        Args:
            prompt: a text that is continued as it is, token ids, or a conversation.
            params: see `GenerateParams`.

        Raises:
            TandemError: the call failed; its class, `error_code`, `param` and `retry_after_s` say
                how, its cause is grpc's own error.
        """
        with self.stream(prompt, **params) as stream:
            return stream.result()

    def stream(self, prompt: Prompt, **params: Unpack[GenerateParams]) -> GenerationStream:
        """The same as it comes; use it in a `with`, which aborts the call when it is left early.

        Args:
            prompt: a text that is continued as it is, token ids, or a conversation.
            params: see `GenerateParams`.

        Raises:
            InvalidRequestError: something that cannot be sent at all; other errors come from the
                stream.
        """
        call = prepared(self._settings, prompt, params, jitter=self._jitter)
        return GenerationStream(call, send=self._send)

    def ready(self, *, timeout_s: float = READY_TIMEOUT_S) -> bool:
        """Whether the gateway has the workers that a request needs.

        Args:
            timeout_s: how long it has to say so, in seconds.

        Raises:
            TandemError: it does not answer.
        """
        try:
            answer = self._health.Check(
                health_pb2.HealthCheckRequest(),
                timeout=timeout_s,
                metadata=key_metadata(self._settings),
            )
        except grpc.RpcError as error:
            raise error_from_rpc(error) from error
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def close(self) -> None:
        """Closes the connection; running calls are cancelled. Twice is fine."""
        self._channel.close()

    def _send(self, call: PreparedCall) -> Rpc:
        return self._stub.Generate(
            call.request, timeout=call.attempts.remaining_s(), metadata=call.metadata
        )
