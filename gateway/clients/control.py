"""Asks workers who they are and how busy, and to drain."""

import asyncio

from gateway.clients.failures import worker_errors
from protos.tandem.v1 import control_pb2, control_pb2_grpc
from shared.discovery.card import WorkerCard
from shared.errors import ConfigError
from shared.rpc.channel_pool import ChannelPool
from shared.wire.identity import identity_from_pb
from shared.wire.place import pairs_from_pb, place_from_pb
from shared.wire.worker import worker_role

_TIMEOUT_S = 2.0


class ControlClient:
    """ControlService as the gateway uses it."""

    def __init__(self, channels: ChannelPool) -> None:
        self._channels = channels

    async def fetch_card(self, address: str) -> WorkerCard:
        """The card of the worker at `host:port`.

        Raises:
            TandemError: nobody answers there, or it is not a worker.
        """
        stub = control_pb2_grpc.ControlServiceStub(self._channels.get(address))
        with worker_errors():
            info, load = await asyncio.gather(
                stub.GetInfo(control_pb2.GetInfoRequest(), timeout=_TIMEOUT_S),
                stub.GetLoad(control_pb2.GetLoadRequest(), timeout=_TIMEOUT_S),
            )
        role = worker_role(info)
        if role is None:
            raise ConfigError(
                f"{address} is not a prefill or decode worker: correct the list of addresses"
            )
        return WorkerCard(
            worker_id=info.worker_id,
            role=role,
            address=address,
            incarnation=info.incarnation,
            model=identity_from_pb(info.model),
            max_model_len=info.max_model_len,
            draining=load.draining,
            queued_tokens=load.queued_tokens,
            running=load.running_requests,
            free_pages=load.free_pages,
            total_pages=load.total_pages,
            transports=tuple(info.transports),
            rejected_transports=tuple(info.rejected_transports),
            faults=info.faults,
            device=info.device,
            methods_hash=info.methods_hash,
            place=place_from_pb(info.place),
            pairs=pairs_from_pb(load.pairs),
            local_prefill_tokens=load.local_prefill_tokens,
        )

    async def drain(self, address: str) -> int:
        """Asks the worker at `host:port` to take no more work, finish what it has and end.

        Returns:
            Requests that it still runs.

        Raises:
            TandemError: nobody answers there.
        """
        stub = control_pb2_grpc.ControlServiceStub(self._channels.get(address))
        with worker_errors():
            answer = await stub.Drain(control_pb2.DrainRequest(), timeout=_TIMEOUT_S)
        return int(answer.running_requests)
