"""Which transports a pair of workers may use, in which order, and why not the others.

A pure function over what is known. The decode worker's order decides, because it owns the memory;
a transport that has failed is passed over while its cooldown lasts and another works. Where none
is left, those that failed are tried again at once, by a canary first: a pair is worth more than a
cooldown, and most failures pass.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from shared.transport.choice import RejectedTransport
from shared.transport.nixl_wire import NAME as NIXL
from shared.types.topology import Topology, memory_apart, processes_apart

NOT_HERE = "not_here"
"""Code: the prefill worker does not have it."""

NOT_THERE = "not_there"
"""Code: the decode worker does not take it."""

PID_NAMESPACE = "pid_namespace"
"""Code: one machine, and the two cannot open each other's memory."""

MEMORY_KIND = "memory_kind"
"""Code: one end hands KV over in a device's memory, the other in the host's."""

LANE_FAILED = "lane_failed"
"""Code: a handoff over it broke off."""

_THROUGH_MEMORY = frozenset({NIXL})
"""On one machine these go through the other process's memory; without it they would crawl over TCP
beside a transport that is made for it, and nobody would know why."""


class LaneStatus(Enum):
    """What is known of one transport of one pair."""

    NEW = "new"
    """Never tried."""
    PROVEN = "proven"
    """A canary arrived, or the worker takes none and no handoff has failed."""
    REJECTED = "rejected"
    """A canary failed."""
    LOST = "lost"
    """A handoff failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneRecord:
    """One transport of one pair."""

    status: LaneStatus = LaneStatus.NEW
    """What is known."""
    gbps: float = 0.0
    """Speed of the last canary; 0 before."""
    code: str = ""
    """Why it was rejected or lost, as one word."""
    reason: str = ""
    """The same as a sentence."""
    until: float = 0.0
    """End of the cooldown, in seconds of the clock."""
    failures: int = 0
    """Failures since the last handoff that arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A transport that may be used."""

    name: str
    """Transport."""
    needs_canary: bool
    """Only after a canary has arrived."""
    failed: RejectedTransport | None = None
    """Why it would be passed over if another worked; None: nothing speaks against it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The transports of one pair; every name is among either the candidates or the rejected."""

    candidates: tuple[Candidate, ...]
    """Best first."""
    rejected: tuple[RejectedTransport, ...]
    """Why not the others, in the order in which they would have been used."""
    due: tuple[str, ...]
    """Candidates whose cooldown is over and that a canary should try again."""

    @property
    def barred(self) -> tuple[RejectedTransport, ...]:
        """Every transport that something speaks against, those of the last resort first."""
        failed = tuple(each.failed for each in self.candidates if each.failed is not None)
        return failed + self.rejected


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFacts:
    """What does not change while both processes live."""

    own: tuple[str, ...]
    """Transports that work here."""
    granted: tuple[str, ...]
    """Transports that the decode worker takes, best first."""
    absent: tuple[RejectedTransport, ...] = ()
    """Transports that this side's settings name and that do not work here."""
    place: Topology
    """Of this side."""
    peer: Topology
    """Of the decode worker."""


def rank_transports(facts: PairFacts, records: Mapping[str, LaneRecord], *, now: float) -> Ranking:
    """Orders the transports of a pair.

    Args:
        facts: of the pair.
        records: what is known of each transport; none is NEW.
        now: seconds of the clock that the records were made by.
    """
    ready: list[Candidate] = []
    due: list[Candidate] = []
    cooling: list[Candidate] = []
    rejected: list[RejectedTransport] = []
    for name in dict.fromkeys((*facts.granted, *facts.own)):
        record = records.get(name, LaneRecord())
        lasting = _refusal(name, facts)
        refusal = lasting or _cooling(name, record, now=now)
        if refusal is None:
            is_due = record.status in {LaneStatus.REJECTED, LaneStatus.LOST}
            candidate = Candidate(name=name, needs_canary=record.status is not LaneStatus.PROVEN)
            (due if is_due else ready).append(candidate)
            continue
        rejected.append(refusal)
        if lasting is None:
            cooling.append(Candidate(name=name, needs_canary=True, failed=refusal))
    if not ready and not due:
        names = {candidate.name for candidate in cooling}
        kept = tuple(each for each in rejected if each.name not in names)
        return Ranking(candidates=tuple(cooling), rejected=kept, due=())
    return Ranking(
        candidates=(*ready, *due),
        rejected=tuple(rejected),
        due=tuple(candidate.name for candidate in due),
    )


def _refusal(name: str, facts: PairFacts) -> RejectedTransport | None:
    """Why a pair can never use a transport."""
    if name not in facts.own:
        for each in facts.absent:
            if each.name == name:
                return each
        return RejectedTransport(
            name=name, code=NOT_HERE, reason="the prefill worker's settings leave it out"
        )
    if name not in facts.granted:
        return RejectedTransport(
            name=name, code=NOT_THERE, reason="the decode worker does not take it"
        )
    if name in _THROUGH_MEMORY and processes_apart(facts.place, facts.peer):
        return RejectedTransport(
            name=name,
            code=PID_NAMESPACE,
            reason=(
                "both workers are on one machine and in different pid namespaces "
                f"({facts.place.pid_namespace} here, {facts.peer.pid_namespace} there), so that "
                "neither shared memory nor CUDA IPC joins them; let containers share pid and ipc"
            ),
        )
    if name in _THROUGH_MEMORY and memory_apart(facts.place, facts.peer):
        return RejectedTransport(
            name=name,
            code=MEMORY_KIND,
            reason=(
                f"KV is in {facts.place.kv_memory or 'host'} memory on the prefill worker and in "
                f"{facts.peer.kv_memory or 'host'} memory on the decode worker, which its writes "
                "do not join: set kv_memory alike on both"
            ),
        )
    return None


def _cooling(name: str, record: LaneRecord, *, now: float) -> RejectedTransport | None:
    if record.status not in {LaneStatus.REJECTED, LaneStatus.LOST} or now >= record.until:
        return None
    left = record.until - now
    return RejectedTransport(
        name=name,
        code=record.code,
        reason=f"{record.reason}; it is tried again in {left:.0f} s",
    )
