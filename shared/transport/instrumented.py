"""Metrics around any transport, so that no transport counts by itself."""

from collections.abc import Sequence
from typing import Any

import structlog

from shared.errors import HandoffError
from shared.kv.memory import KvBytes
from shared.telemetry.metrics import HandoffFailureMetrics, TransferMetrics
from shared.transport.base import (
    Grant,
    KvSender,
    KvTransport,
    TransferStats,
    TransportContext,
)
from shared.transport.choice import ChosenTransports, open_transports
from shared.transport.fault_plan import Fault, parse_faults
from shared.transport.faulty import FaultyTransport
from shared.transport.registry import transport_registry
from shared.types.kv_manifest import SegmentCheck

_log = structlog.get_logger(__name__)


def note_transports(chosen: ChosenTransports[Any], metrics: HandoffFailureMetrics) -> None:
    """Shows in metrics and log what a worker can use, and why not the rest."""
    for name in chosen.names:
        metrics.transport_info.labels(name).set(1)
    for each in chosen.rejected:
        metrics.transport_rejected.labels(each.name, each.code).set(1)
        _log.warning("a transport does not work here", transport=each.name, reason=each.reason)


def instrumented_transports(
    wanted: Sequence[str],
    *,
    required: str,
    context: TransportContext,
    metrics: TransferMetrics,
    faults: Sequence[str] = (),
) -> "ChosenTransports[InstrumentedTransport]":
    """Opens the transports of a sending worker, counted, and shows which those are.

    Args:
        wanted: their names, best first.
        required: use only this one; empty: all that are wanted.
        context: this side.
        metrics: where to count.
        faults: what goes wrong on purpose, as `parse_faults` reads it; empty: nothing.

    Raises:
        ConfigError: see `open_transports` and `parse_faults`.
    """
    known = transport_registry()
    plan = parse_faults(faults) if faults else None

    def count(fault: Fault) -> None:
        metrics.transfer_faults.labels(fault.kind.value, fault.moment.value).inc()

    def open_one(name: str) -> InstrumentedTransport:
        inner = known.get(name)(context)
        if plan is not None:
            inner = FaultyTransport(inner, plan, on_fault=count)
        return InstrumentedTransport(inner, metrics)

    chosen = open_transports(wanted, required=required, open_one=open_one)
    note_transports(chosen, metrics)
    if plan is not None:
        _log.warning("transfers will be broken on purpose: setting faults", faults=plan.text)
    return chosen


class InstrumentedTransport:
    """Counts what another transport moves.

    Args:
        inner: the transport that moves bytes.
        metrics: where to count.
    """

    def __init__(self, inner: KvTransport, metrics: TransferMetrics) -> None:
        self._inner = inner
        self._metrics = metrics

    @property
    def name(self) -> str:
        """Name of the transport inside."""
        return self._inner.name

    @property
    def check(self) -> SegmentCheck:
        """Of the transport inside."""
        return self._inner.check

    def sender(self) -> KvSender:
        """A counted sender."""
        return InstrumentedSender(self._inner.sender(), name=self.name, metrics=self._metrics)

    async def close(self) -> None:
        """Closes the transport inside."""
        await self._inner.close()


class InstrumentedSender:
    """Counts one handoff; made by `InstrumentedTransport.sender`."""

    def __init__(self, inner: KvSender, *, name: str, metrics: TransferMetrics) -> None:
        self._inner = inner
        self._name = name
        self._metrics = metrics
        self._failed = False

    @property
    def takes_sums(self) -> bool:
        """Whether the sender inside does."""
        return self._inner.takes_sums

    async def open(self, *, address: str, grant: Grant) -> None:
        """Opens the sender inside; see `KvSender.open`."""
        try:
            await self._inner.open(address=address, grant=grant)
        except HandoffError as error:
            self._count_failure(error)
            raise

    async def write(self, offset: int, data: KvBytes) -> None:
        """Writes through the sender inside; see `KvSender.write`."""
        try:
            await self._inner.write(offset, data)
        except HandoffError as error:
            self._count_failure(error)
            raise

    async def seal(self, *, sums: Sequence[int] = ()) -> TransferStats:
        """Seals the sender inside; see `KvSender.seal`."""
        try:
            stats = await self._inner.seal(sums=sums)
        except HandoffError as error:
            self._count_failure(error)
            raise
        self._metrics.kv_bytes.labels(self._name).inc(stats.bytes)
        self._metrics.kv_transfer_seconds.labels(self._name).observe(stats.seconds)
        if stats.gbps > 0:
            self._metrics.kv_transfer_gbps.labels(self._name).observe(stats.gbps)
        return stats

    async def abort(self) -> None:
        """Aborts the sender inside; see `KvSender.abort`."""
        await self._inner.abort()

    def _count_failure(self, error: HandoffError) -> None:
        if not self._failed:
            self._failed = True
            self._metrics.transfer_failures.labels(type(error).__name__).inc()
