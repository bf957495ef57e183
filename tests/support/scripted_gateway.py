"""A gRPC server that answers Generate as a test says, to see what a client does about it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from protos.tandem.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from shared.errors import TandemError
from shared.rpc.interceptors import metadata_text
from shared.rpc.server import build_server

Step = inference_pb2.GenerateResponse | TandemError
"""A message, or how the call fails."""


def delta(text: str, **fields: Any) -> inference_pb2.GenerateResponse:
    return inference_pb2.GenerateResponse(delta=inference_pb2.GenerateDelta(text=text, **fields))


def accepted(request_id: str = "r1") -> inference_pb2.GenerateResponse:
    return inference_pb2.GenerateResponse(
        accepted=inference_pb2.GenerateAccepted(request_id=request_id, prompt_tokens=7)
    )


def finished(*, answer: int = 0, last: bool = True) -> inference_pb2.GenerateResponse:
    return inference_pb2.GenerateResponse(
        finished=inference_pb2.GenerateFinished(
            reason=common_pb2.FINISH_REASON_STOP,
            answer=answer,
            report=inference_pb2.RequestReport(transport="none") if last else None,
        )
    )


WELL = (accepted(), delta("fine"), finished())


@dataclass
class ScriptedGateway(inference_pb2_grpc.InferenceServiceServicer):
    """Answers the first call by the first script, and so on; then always well."""

    scripts: list[Sequence[Step]] = field(default_factory=list)
    address: str = ""
    requests: list[inference_pb2.GenerateRequest] = field(default_factory=list)
    metadata: list[dict[str, str]] = field(default_factory=list)
    remaining_s: list[float | None] = field(default_factory=list)

    async def Generate(  # noqa: N802  the name of the rpc
        self, request: inference_pb2.GenerateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        script = self.scripts.pop(0) if self.scripts else WELL
        self.requests.append(request)
        keys = ("authorization", "x-request-id", "traceparent", "tracestate")
        sent = context.invocation_metadata()
        self.metadata.append({key: metadata_text(sent, key) for key in keys})
        self.remaining_s.append(context.time_remaining())
        for step in script:
            if isinstance(step, TandemError):
                raise step
            yield step


@asynccontextmanager
async def scripted_gateway(
    *scripts: Sequence[Step], port: int = 0
) -> AsyncIterator[ScriptedGateway]:
    """One on a free port, or on that of one that was there before."""
    server = build_server(
        host="127.0.0.1", port=port, service_names=("tandem.v1.InferenceService",)
    )
    gateway = ScriptedGateway(scripts=list(scripts), address=server.address)
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(gateway, server.server)
    await server.start()
    await server.health.set_ready(True)
    try:
        yield gateway
    finally:
        await server.stop()
