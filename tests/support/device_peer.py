"""A prefill peer whose pushes go from device memory to device memory, which is the CPU's here."""

from dataclasses import replace

import torch

from shared.kv_memory.weighted_sum import slow_sums, unsigned
from shared.transport.base import TransportContext
from shared.types.kv_manifest import KvManifest, SegmentCheck
from tests.support.prefill_peer import PrefillPeer, Prepared
from tests.support.transfer_parts import NIXL_DEVICE, open_transport


def over_nixl(peer: PrefillPeer) -> None:
    """The peer's next pushes go from device memory to device memory."""
    context = TransportContext(model=peer.identity, incarnation="prefill-peer")
    peer.transport = open_transport(NIXL_DEVICE, context)  # type: ignore[assignment]


def summed(prepared: Prepared, peer: PrefillPeer) -> KvManifest:
    """A manifest with the sums of device memory and no CRC-32."""
    data = torch.frombuffer(bytearray(prepared.image), dtype=torch.uint8)
    sums = slow_sums(data, prepared.plan.segments).tolist()
    segments = tuple(
        replace(s, sum64=unsigned(total))
        for s, total in zip(prepared.plan.segments, sums, strict=True)
    )
    return peer.manifest(prepared, segments=segments, check=SegmentCheck.SUM64)
