"""ControlService: who this worker is, how busy it is, and the begin of its end."""

from __future__ import annotations  # grpc's generic types exist for the type checker only

from collections.abc import Callable
from typing import Any

import grpc.aio

from prefill_service.engine.engine import PrefillEngine
from protos.tandem.v1 import control_pb2, control_pb2_grpc
from shared.types.worker_info import WorkerInfo
from shared.wire.place import pairs_to_pb
from shared.wire.worker import worker_info_to_pb

SERVICE_NAME = control_pb2.DESCRIPTOR.services_by_name["ControlService"].full_name
"""Full name, for health and reflection."""

CAPABILITIES = ("claa", "resend", "forced_first_tokens", "branches")
"""What this version can do beyond the first one's contract."""

Context = grpc.aio.ServicerContext[Any, Any]


StartDrain = Callable[[float | None], None]
"""Begins a drain with a cap in seconds, or with the worker's own."""


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
        return worker_info_to_pb(self._info)

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
            pairs=pairs_to_pb(load.pairs),
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
