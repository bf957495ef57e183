"""The sending ends of the transports of a prefill worker, and what is known of them by pair."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from prometheus_client import CollectorRegistry

from prefill_service.config import PrefillConfig
from prefill_service.engine.slab_room import SlabRoom
from shared.rpc.tls import PeerTls
from shared.telemetry.metrics import PairMetrics, TransferMetrics
from shared.transport.base import LocalEndpoint, TransportContext
from shared.transport.choice import ChosenTransports
from shared.transport.hello import Peer
from shared.transport.instrumented import InstrumentedTransport, instrumented_transports
from shared.transport.paired import OwnSide, PairedTransports
from shared.transport.probe_calls import GrpcProbeCalls


@dataclass(frozen=True, slots=True)
class Lanes:
    """Open transports; `close` ends them."""

    chosen: ChosenTransports[InstrumentedTransport]
    """What works here, and what does not."""
    pairs: PairedTransports
    """Which of them to use for whom."""

    def describe(self) -> list[dict[str, object]]:
        """Every transport to every decode worker, for health."""
        return [asdict(pair) for pair in self.pairs.states()]

    async def close(self) -> None:
        """Ends canaries, then every transport; twice is fine."""
        await self.pairs.close()
        for transport in self.chosen.opened.values():
            await transport.close()


class OnlyEndpoint(Mapping[str, LocalEndpoint]):
    """The one receiver of this process, by whatever address others know its worker.

    Another worker's grant shows another incarnation, which no sender takes for this one's.

    Args:
        endpoint: the receiver.
    """

    def __init__(self, endpoint: LocalEndpoint) -> None:
        self._endpoint = endpoint

    def __getitem__(self, address: str) -> LocalEndpoint:
        return self._endpoint

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 1


def open_lanes(
    config: PrefillConfig,
    own: Peer,
    *,
    tls: PeerTls | None,
    registry: CollectorRegistry,
    room: SlabRoom,
    endpoint: LocalEndpoint | None = None,
) -> Lanes:
    """Opens what the settings name.

    Args:
        config: settings.
        own: this side.
        tls: mutual TLS with the decode workers; None: plain text.
        registry: takes the metrics.
        room: that KV is sent from; it hears which parts transfers may still read.
        endpoint: a receiver of this process, for the transport `loopback`.

    Raises:
        ConfigError: a name is unknown, or the required or every wanted one does not work here.
    """
    chosen = instrumented_transports(
        config.transports,
        required=config.require_transport,
        context=TransportContext(
            model=own.model,
            incarnation=own.incarnation,
            local_endpoints={} if endpoint is None else OnlyEndpoint(endpoint),
            tls=tls,
            memory=room.memory,
            reads=room.reads,
        ),
        metrics=TransferMetrics(registry),
        faults=config.faults,
    )
    pairs = PairedTransports(
        OwnSide(transports=chosen.opened, rejected=chosen.rejected, place=own.place),
        calls=GrpcProbeCalls(own, tls=tls),
        metrics=PairMetrics(registry),
    )
    return Lanes(chosen, pairs)
