"""How fast two workers are joined, as far as their cards tell."""

from enum import IntEnum

from shared.discovery.card import WorkerCard
from shared.types.topology import joined_by_nvlink, same_machine

_PEER_COPIES = frozenset({"nixl"})
"""Transports that copy from GPU to GPU; the others pass through the hosts' memory."""


class Link(IntEnum):
    """The path of KV from a prefill worker to a decode worker; a larger one is faster."""

    NONE = 0
    """They have no transport in common, or the prefill worker can use none of them."""
    NETWORK = 1
    """Two machines, or nobody knows."""
    MACHINE = 2
    """One machine: the bytes stay in its memory."""
    NVLINK = 3
    """Two GPUs that NVLink joins, or the same one, and a transport that copies between them."""

    @property
    def text(self) -> str:
        """As reports write it; empty where nothing is known."""
        return {Link.NONE: "no common transport", Link.MACHINE: "same machine"}.get(
            self, "" if self is Link.NETWORK else "nvlink"
        )


def link_between(prefill: WorkerCard, decode: WorkerCard) -> Link:
    """The fastest link that both cards allow, without what the prefill worker had to give up."""
    common = set(prefill.transports) & set(decode.transports) - _rejected(prefill, decode)
    if not common and prefill.transports and decode.transports:
        return Link.NONE
    if not same_machine(prefill.place, decode.place):
        return Link.NETWORK
    if common & _PEER_COPIES and joined_by_nvlink(prefill.place, decode.place):
        return Link.NVLINK
    return Link.MACHINE


def _rejected(prefill: WorkerCard, decode: WorkerCard) -> set[str]:
    return {
        pair.transport
        for pair in prefill.pairs
        if pair.rejected and pair.worker_id == decode.worker_id
    }
