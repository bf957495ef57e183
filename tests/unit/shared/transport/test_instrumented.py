"""Metrics around a transport, and the choice of one."""

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from shared.errors import ConfigError, StaleWriteError, TransportError
from shared.telemetry.metrics import TransferMetrics
from shared.transport.base import TransferStats
from shared.transport.instrumented import InstrumentedTransport
from shared.transport.registry import transport_registry
from tests.support.transfer_parts import receiver


async def test_a_sealed_transfer_is_counted_once() -> None:
    registry = CollectorRegistry()
    async with receiver("loopback") as end:
        transport = InstrumentedTransport(end.transport, TransferMetrics(registry))
        assert transport.name == "loopback"
        lease, grant = end.grant(100)
        sender = transport.sender()
        await sender.open(address=end.address, grant=grant)
        await sender.write(0, b"x" * 100)
        stats = await sender.seal()
        await sender.abort()
        await transport.close()
        assert end.bytes_of(lease) == b"x" * 100
    label = {"transport": "loopback"}
    assert stats.bytes == 100
    assert registry.get_sample_value("tandem_kv_bytes_total", label) == 100
    assert registry.get_sample_value("tandem_kv_transfer_seconds_count", label) == 1
    assert registry.get_sample_value("tandem_kv_transfer_gbps_count", label) == 1


async def test_an_empty_transfer_has_no_speed() -> None:
    registry = CollectorRegistry()
    async with receiver("loopback") as end:
        transport = InstrumentedTransport(end.transport, TransferMetrics(registry))
        _, grant = end.grant(100)
        sender = transport.sender()
        await sender.open(address=end.address, grant=grant)
        await sender.seal()
    label = {"transport": "loopback"}
    assert registry.get_sample_value("tandem_kv_transfer_gbps_count", label) is None
    assert TransferStats(bytes=0, seconds=0.0).gbps == 0


async def test_each_failed_handoff_is_counted_once_by_reason() -> None:
    registry = CollectorRegistry()
    async with receiver("loopback") as end:
        transport = InstrumentedTransport(end.transport, TransferMetrics(registry))
        _, grant = end.grant(100)
        unreachable = transport.sender()
        with pytest.raises(TransportError):
            await unreachable.open(address="nowhere", grant=grant)
        stale = transport.sender()
        await stale.open(address=end.address, grant=replace(grant, generation=9))
        with pytest.raises(StaleWriteError):
            await stale.write(0, b"x")
        with pytest.raises(StaleWriteError):
            await stale.seal()
        await stale.abort()
    for reason in ("TransportError", "StaleWriteError"):
        value = registry.get_sample_value("tandem_transfer_failures_total", {"reason": reason})
        assert value == 1


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="grpc"):
        transport_registry().get("pigeon")
