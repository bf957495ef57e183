"""How fast two workers are joined, as far as their cards tell."""

from enum import IntEnum

from shared.discovery.card import WorkerCard

_PEER_COPIES = frozenset({"nixl"})
"""Transports that copy from GPU to GPU; the others pass through the hosts' memory."""


class Link(IntEnum):
    """The path of KV from a prefill worker to a decode worker; a larger one is faster."""

    NONE = 0
    """They have no transport in common."""
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
    """The fastest link that both cards allow."""
    common = set(prefill.transports) & set(decode.transports)
    if not common and prefill.transports and decode.transports:
        return Link.NONE
    if not prefill.host or prefill.host != decode.host:
        return Link.NETWORK
    if common & _PEER_COPIES and _joined(prefill, decode):
        return Link.NVLINK
    return Link.MACHINE


def _joined(prefill: WorkerCard, decode: WorkerCard) -> bool:
    if not prefill.gpu or not decode.gpu:
        return False
    return prefill.gpu == decode.gpu or decode.gpu in prefill.nvlink_peers
