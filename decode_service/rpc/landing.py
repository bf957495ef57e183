"""The receiving ends of the transports that a decode worker takes."""

from collections.abc import Callable, Sequence

import grpc.aio

from decode_service.engine.landing import SlabLanding
from decode_service.engine.reservations import ReservationTable
from shared.kv.slab import Slab
from shared.registry.registry import Registry
from shared.transport import grpc_stream, nixl_wire
from shared.transport.base import LocalEndpoint
from shared.transport.choice import ChosenTransports, open_transports
from shared.transport.grpc_receiver import add_transfer_service
from shared.transport.hello import Peer
from shared.transport.nixl_receiver import NixlReceiver, add_nixl_service
from shared.transport.probe_ground import ProbeGround
from shared.transport.probe_service import add_probe_service
from shared.transport.probe_switch import ProbedLanding, ProbedWriter


class LandingGround:
    """Opens what the settings name; bytes of all of them land in one slab.

    Args:
        wanted: names of transports, best first.
        required: use only this one; empty: all that are wanted.
        table: who holds which lease.
        slab: where bytes land, with room for canaries behind it; it must outlive this.
        incarnation: of this process.

    Raises:
        ConfigError: a name is unknown, or the required or every wanted one does not work here.
    """

    def __init__(
        self,
        wanted: Sequence[str],
        *,
        required: str,
        table: ReservationTable,
        slab: Slab,
        incarnation: str,
    ) -> None:
        self.probes = ProbeGround(slab.memory, offset=slab.total_bytes, incarnation=incarnation)
        self._writer = ProbedWriter(table, self.probes)
        landing = ProbedLanding(SlabLanding(table, slab), self.probes)
        known: Registry[Callable[[], NixlReceiver | None]] = Registry("transport")
        known.register(nixl_wire.NAME, lambda: NixlReceiver(slab.memory, landing))
        known.register(grpc_stream.NAME, lambda: None)  # frames need nothing but the server
        self.chosen: ChosenTransports[NixlReceiver | None] = open_transports(
            wanted, required=required, open_one=lambda name: known.get(name)()
        )
        self._direct = [receiver for receiver in self.chosen.opened.values() if receiver]

    def serve(self, server: grpc.aio.Server, own: Peer) -> None:
        """Adds their services to a server that has not started."""
        for receiver in self._direct:
            add_nixl_service(server, receiver)
        add_transfer_service(
            server,
            writer=self._writer,
            own=own,
            direct=[receiver.offer for receiver in self._direct],
        )
        add_probe_service(server, self.probes)

    def endpoint(self, own: Peer) -> LocalEndpoint:
        """The same slab for a sender of this process, whose bytes need no wire."""
        return LocalEndpoint(writer=self._writer, model=own.model, incarnation=own.incarnation)

    async def close(self) -> None:
        """Frees them, after the server stopped; twice is fine."""
        for receiver in self._direct:
            await receiver.close()
