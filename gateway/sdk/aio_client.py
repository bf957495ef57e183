"""The client for an event loop."""

import random
from types import TracebackType
from typing import Self, Unpack

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.sdk.aio_stream import AioRpc, AsyncGenerationStream
from gateway.sdk.call import PreparedCall, key_metadata, prepared
from gateway.sdk.channel import open_aio_channel
from gateway.sdk.client import READY_TIMEOUT_S
from gateway.sdk.params import GenerateParams
from gateway.sdk.prompt import Prompt
from gateway.sdk.results import Generation
from gateway.sdk.settings import ClientSettings, Retry, Tls
from protos.tandem.v1 import inference_pb2_grpc
from shared.rpc.status import error_from_rpc


class AsyncTandemClient:
    """A connection to a gateway, opened with the first call in that call's event loop.

    Args:
        address: host:port of the gateway's gRPC server.
        api_key: sent with every call.
        tls: encrypts the connection; without, it is plain text: keep it on loopback or on a
            private network then.
        timeout_s: longest life of a call, its repetitions included, in seconds; None leaves it to
            the gateway.
        retry: when a failed call is made again.
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
        self._opened: grpc.aio.Channel | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def generate(self, prompt: Prompt, **params: Unpack[GenerateParams]) -> Generation:
        """All answers to a prompt, whole.

        Args:
            prompt: a text that is continued as it is, token ids, or a conversation.
            params: see `GenerateParams`.

        Raises:
            ConfigError: a file of the TLS settings cannot be read.
            TandemError: the call failed; its class, `error_code`, `param` and `retry_after_s` say
                how, its cause is grpc's own error.
        """
        async with self.stream(prompt, **params) as stream:
            return await stream.result()

    def stream(self, prompt: Prompt, **params: Unpack[GenerateParams]) -> AsyncGenerationStream:
        """The same as it comes; use it in an `async with`, which aborts the call when it is left.

        Args:
            prompt: a text that is continued as it is, token ids, or a conversation.
            params: see `GenerateParams`.

        Raises:
            ConfigError: a file of the TLS settings cannot be read.
            InvalidRequestError: something that cannot be sent at all; other errors come from the
                stream.
        """
        call = prepared(self._settings, prompt, params, jitter=self._jitter)
        return AsyncGenerationStream(call, send=self._send)

    async def ready(self, *, timeout_s: float = READY_TIMEOUT_S) -> bool:
        """Whether the gateway has the workers that a request needs.

        Args:
            timeout_s: how long it has to say so, in seconds.

        Raises:
            TandemError: it does not answer.
        """
        health = health_pb2_grpc.HealthStub(self._channel())
        try:
            answer = await health.Check(
                health_pb2.HealthCheckRequest(),
                timeout=timeout_s,
                metadata=key_metadata(self._settings),
            )
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def close(self) -> None:
        """Closes the connection; running calls are cancelled. Twice is fine."""
        if self._opened is not None:
            await self._opened.close()

    def _channel(self) -> grpc.aio.Channel:
        if self._opened is None:
            self._opened = open_aio_channel(self._settings)
        return self._opened

    def _send(self, call: PreparedCall) -> AioRpc:
        stub = inference_pb2_grpc.InferenceServiceStub(self._channel())
        return stub.Generate(
            call.request, timeout=call.attempts.remaining_s(), metadata=call.metadata
        )
