"""ControlService of a decode worker."""

from collections.abc import Callable

import grpc.aio

from decode_service.engine.status import WorkerLoad
from protos.tandem.v1 import control_pb2, control_pb2_grpc
from shared.types.worker_info import WorkerInfo
from shared.wire.worker import worker_info_to_pb

SERVICE_NAME = control_pb2.DESCRIPTOR.services_by_name["ControlService"].full_name
"""Full name, for health and reflection."""

CAPABILITIES = (
    "delta",
    "dense",
    "manifest_v1",
    "pruned_layouts",
    "per_head_positions",
    "logprobs",
    "branches",
)
"""What a peer may rely on."""

_Context = grpc.aio.ServicerContext[object, object]


class ControlServicer(control_pb2_grpc.ControlServiceServicer):
    """Identity, load, drain.

    Args:
        info: who the worker is.
        load: asks how busy it is.
        drain: begins a drain with a cap in seconds (None: the worker's own).
    """

    def __init__(
        self,
        info: WorkerInfo,
        *,
        load: Callable[[], WorkerLoad],
        drain: Callable[[float | None], None],
    ) -> None:
        self._info = info
        self._load = load
        self._drain = drain

    async def GetInfo(
        self, _request: control_pb2.GetInfoRequest, _context: _Context
    ) -> control_pb2.GetInfoResponse:
        """Who the worker is."""
        return worker_info_to_pb(self._info)

    async def GetLoad(
        self, _request: control_pb2.GetLoadRequest, _context: _Context
    ) -> control_pb2.GetLoadResponse:
        """How busy it is."""
        load = self._load()
        return control_pb2.GetLoadResponse(
            draining=load.draining,
            queued_requests=load.waiting,
            queued_tokens=load.queued_tokens,
            running_requests=load.running,
            free_pages=load.free_pages,
            total_pages=load.total_pages,
            free_slab_bytes=load.free_slab_bytes,
            total_slab_bytes=load.total_slab_bytes,
            stalled_seconds=load.stalled_seconds,
            tokens_per_second=load.tokens_per_second,
            kv_tokens=load.kv_tokens,
            max_batch=load.max_batch,
            local_prefill_tokens=load.local_prefill_tokens,
        )

    async def Drain(
        self, request: control_pb2.DrainRequest, _context: _Context
    ) -> control_pb2.DrainResponse:
        """Begins to drain; the process ends when running work is done or the cap is reached."""
        self._drain(request.timeout_ms / 1000 if request.timeout_ms else None)
        load = self._load()
        return control_pb2.DrainResponse(running_requests=load.running + load.waiting)
