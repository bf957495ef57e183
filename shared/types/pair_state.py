"""What a prefill worker knows of one transport to one decode worker."""

from dataclasses import dataclass

MAX_PAIR_STATES = 64
"""States that a worker tells of, the latest ones; a reader takes no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairState:
    """One transport of one pair."""

    worker_id: str
    """The decode worker."""
    transport: str
    """The transport."""
    gbps: float = 0.0
    """Speed of the last canary, in gigabytes per second; 0 when none has flown."""
    rejected: str = ""
    """Why it is not used, as one word; empty when it may be."""
    reason: str = ""
    """The same as a sentence."""
