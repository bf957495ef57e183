"""When the KV of a traced prompt was computed and moved.

Seconds count from the moment at which the prefill worker began to compute the prompt.
"""

from dataclasses import dataclass

MAX_ENTRIES = 4096
"""Blocks, and pushes, that are told of one prompt; what comes after is counted only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvBlock:
    """Slots of one layer that became final."""

    layer: int
    """The layer."""
    first_slot: int
    """First of the slots."""
    slots: int
    """How many."""
    seconds: float
    """When the device had computed them."""

    def to_json(self) -> dict[str, object]:
        """One entry of `computed`."""
        return {
            "layer": self.layer,
            "first_slot": self.first_slot,
            "slots": self.slots,
            "ms": round(self.seconds * 1000, 3),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPush:
    """Bytes that the transport took."""

    nbytes: int
    """How many."""
    start_s: float
    """When they were handed to it."""
    seconds: float
    """Until it could take more; they may still be under way then."""

    def to_json(self) -> dict[str, object]:
        """One entry of `pushed`."""
        return {
            "bytes": self.nbytes,
            "start_ms": round(self.start_s * 1000, 3),
            "ms": round(self.seconds * 1000, 3),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffTrace:
    """One prompt's way to its decode worker."""

    computed: tuple[KvBlock, ...] = ()
    """In order; empty for KV that was computed before and sent again."""
    pushed: tuple[KvPush, ...] = ()
    """In order."""
    left_out: int = 0
    """Blocks and pushes beyond those that are told."""
    computed_s: float = 0.0
    """When the last computation was done; 0 for KV that was computed before."""
    sealed_s: float = 0.0
    """When every byte was on the other side."""
    adopted_s: float = 0.0
    """When the decode worker had taken the cache over."""

    def to_json(self) -> dict[str, object]:
        """The `handoff` object of a prompt's trace."""
        return {
            "computed": [block.to_json() for block in self.computed],
            "pushed": [push.to_json() for push in self.pushed],
            "left_out": self.left_out,
            "computed_ms": round(self.computed_s * 1000, 3),
            "sealed_ms": round(self.sealed_s * 1000, 3),
            "adopted_ms": round(self.adopted_s * 1000, 3),
        }
