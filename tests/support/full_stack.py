"""A gateway, a prefill worker and a decode worker, all real, in this process."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import httpx

from decode_service.app import DecodeServer
from gateway.app import Gateway
from gateway.config import GatewayConfig
from protos.tandem.v1 import inference_pb2, inference_pb2_grpc
from shared.telemetry.spans import QuietSource, SpanSource
from tests.support.decode_server import decode_server
from tests.support.prefill_worker import Worker, prefill_worker


@dataclass(frozen=True)
class Stack:
    """What a test touches."""

    gateway: Gateway
    prefill: Worker
    decode: DecodeServer
    http: httpx.AsyncClient
    channel: grpc.aio.Channel

    @property
    def url(self) -> str:
        """Base of the REST API."""
        return f"http://{self.gateway.rest_address}/v1"

    async def generate(
        self, request: inference_pb2.GenerateRequest
    ) -> tuple[str, inference_pb2.GenerateFinished]:
        """Text and last event over gRPC."""
        stub = inference_pb2_grpc.InferenceServiceStub(self.channel)
        events = [event async for event in stub.Generate(request, timeout=30)]
        return "".join(event.delta.text for event in events), events[-1].finished


@asynccontextmanager
async def running_stack(
    model_dir: Path,
    profile: Path,
    *,
    spans: Callable[[str], SpanSource] | None = None,
    prefill: Mapping[str, Any] | None = None,
    decode: Mapping[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Stack]:
    """Starts all three; both workers have `profile`.

    Args:
        model_dir: what they serve.
        profile: of both workers.
        spans: where the traces of a role go.
        prefill: settings of the prefill worker.
        decode: settings of the decode worker.
        settings: of the gateway.
    """
    source = spans or (lambda _role: QuietSource())
    async with (
        decode_server(model_dir, profile, spans=source("decode"), **(decode or {})) as decode_side,
        prefill_worker(
            model_dir, profile=str(profile), spans=source("prefill"), **(prefill or {})
        ) as prefill_side,
    ):
        values: dict[str, Any] = {
            "port": 0,
            "grpc_port": 0,
            "admin_port": 0,
            "model_dir": str(model_dir),
            "prefill_workers": (prefill_side.app.address,),
            "decode_workers": (decode_side.address,),
            "poll_interval_s": 0.1,
            "drain_timeout_s": 1.0,
        }
        gateway = Gateway(GatewayConfig(**(values | settings)), spans=source("gateway"))
        try:
            await gateway.start()
            async with (
                httpx.AsyncClient(base_url=f"http://{gateway.rest_address}", timeout=30.0) as http,
                grpc.aio.insecure_channel(gateway.grpc_address) as channel,
            ):
                yield Stack(gateway, prefill_side, decode_side, http, channel)
        finally:
            await gateway.close()
