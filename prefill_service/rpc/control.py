"""ControlService: who this worker is, how busy it is, and the begin of its end."""

from __future__ import annotations  # grpc's generic types exist for the type checker only

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import grpc.aio

from prefill_service.engine.engine import PrefillEngine
from protos.tandem.v1 import control_pb2, control_pb2_grpc
from shared.types.model_identity import ModelIdentity
from shared.wire.identity import identity_to_pb

SERVICE_NAME = control_pb2.DESCRIPTOR.services_by_name["ControlService"].full_name
"""Full name, for health and reflection."""

CAPABILITIES = ("claa", "resend", "forced_first_token")
"""What this version can do beyond the first one's contract."""

Context = grpc.aio.ServicerContext[Any, Any]


def package_version() -> str:
    """Version of this package, or `source` when it is not installed."""
    try:
        return metadata.version("tandem-llm")
    except metadata.PackageNotFoundError:
        return "source"


StartDrain = Callable[[float | None], None]
"""Begins a drain with a cap in seconds, or with the worker's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """What a worker says of itself."""

    worker_id: str
    """Its name."""
    incarnation: str
    """Fresh for every process."""
    model: ModelIdentity
    """Its model."""
    max_model_len: int
    """Longest context in tokens."""
    version: str
    """Package version."""
    device: str
    """Device it computes on."""
    attention_backend: str
    """Attention backend in use."""
    rejected_backends: tuple[str, ...]
    """`name: reason` of those that are not."""
    transports: tuple[str, ...]
    """Transports, best first."""
    profile: str
    """Model profile in use, and whether it is calibrated."""


class ControlServicer(control_pb2_grpc.ControlServiceServicer):
    """The operator's and the router's view.

    Args:
        engine: whose load it tells.
        info: the worker.
        start_drain: begins the drain of the process; must return at once.
    """

    def __init__(self, engine: PrefillEngine, *, info: WorkerInfo, start_drain: StartDrain) -> None:
        self._engine = engine
        self._info = info
        self._start_drain = start_drain

    async def GetInfo(
        self, _request: control_pb2.GetInfoRequest, _context: Context
    ) -> control_pb2.GetInfoResponse:
        """Who the worker is."""
        info = self._info
        return control_pb2.GetInfoResponse(
            worker_id=info.worker_id,
            incarnation=info.incarnation,
            role=control_pb2.ROLE_PREFILL,
            model=identity_to_pb(info.model),
            max_model_len=info.max_model_len,
            version=info.version,
            capabilities=CAPABILITIES,
            device=info.device,
            attention_backend=info.attention_backend,
            rejected_backends=info.rejected_backends,
            transports=info.transports,
            profile=info.profile,
        )

    async def GetLoad(
        self, _request: control_pb2.GetLoadRequest, _context: Context
    ) -> control_pb2.GetLoadResponse:
        """How busy it is."""
        load = self._engine.load()
        return control_pb2.GetLoadResponse(
            draining=load.draining,
            queued_requests=load.queued_requests,
            queued_tokens=load.queued_tokens,
            running_requests=load.running_requests,
            stalled_seconds=load.stalled_seconds,
            held_handoffs=load.held_handoffs,
            tokens_per_second=load.tokens_per_second,
        )

    async def Drain(
        self, request: control_pb2.DrainRequest, _context: Context
    ) -> control_pb2.DrainResponse:
        """Takes no new prompts, finishes what is here; the process ends afterwards."""
        self._start_drain(request.timeout_ms / 1000 if request.timeout_ms else None)
        load = self._engine.load()
        return control_pb2.DrainResponse(
            running_requests=load.running_requests + load.queued_requests
        )
