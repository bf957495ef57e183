"""What one prefill process remembers of its transports to decode workers, and for how long."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from shared.errors import TandemError
from shared.transport.ranking import LANE_FAILED, LaneRecord, LaneStatus
from shared.types.topology import Topology

MAX_PAIRS = 256
"""Decode workers that are remembered; the one used longest ago goes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CooldownSettings:
    """How long a transport that failed is passed over."""

    first_s: float = 30.0
    """After its first failure."""
    longest_s: float = 300.0
    """After many; each one doubles it."""

    def seconds(self, failures: int) -> float:
        """Length of the cooldown after so many failures in a row."""
        doublings = min(max(failures - 1, 0), 32)  # beyond that a float would only grow
        return min(self.first_s * 2.0**doublings, self.longest_s)


@dataclass(slots=True, kw_only=True)
class PairRecord:
    """One decode worker, as this process knows it."""

    worker_id: str
    """Its name."""
    address: str
    """Where it is."""
    incarnation: str
    """Its process; another one has a clean record."""
    place: Topology
    """Where its memory is."""
    granted: tuple[str, ...] = ()
    """Transports it takes, as it last said."""
    lanes: dict[str, LaneRecord] = field(default_factory=dict)
    """What is known of each."""
    used: str = ""
    """The transport of its last handoff."""


class LaneRecords:
    """All pairs of this process.

    Args:
        cooldown: after failures.
        clock: monotonic seconds.
    """

    def __init__(self, *, cooldown: CooldownSettings, clock: Callable[[], float]) -> None:
        self._cooldown = cooldown
        self._clock = clock
        self._pairs: OrderedDict[str, PairRecord] = OrderedDict()

    def all(self) -> tuple[PairRecord, ...]:
        """Every pair, the latest last."""
        return tuple(self._pairs.values())

    def find(self, address: str, *, incarnation: str) -> PairRecord | None:
        """The record of a process, which counts as used now."""
        pair = self._pairs.get(address)
        if pair is None or pair.incarnation != incarnation:
            return None
        self._pairs.move_to_end(address)
        return pair

    def add(self, pair: PairRecord) -> PairRecord:
        """Remembers a process and returns it; one at its address before is forgotten."""
        self._pairs[pair.address] = pair
        self._pairs.move_to_end(pair.address)
        while len(self._pairs) > MAX_PAIRS:
            self._pairs.popitem(last=False)
        return pair

    def proven(self, pair: PairRecord, name: str, *, gbps: float) -> None:
        """A canary arrived; what failed before still counts until a handoff has arrived, too."""
        record = pair.lanes.get(name, LaneRecord())
        pair.lanes[name] = LaneRecord(
            status=LaneStatus.PROVEN, gbps=gbps or record.gbps, failures=record.failures
        )

    def rejected(self, pair: PairRecord, name: str, error: TandemError) -> float:
        """A canary failed; returns the seconds of the cooldown."""
        return self._fail(
            pair, name, LaneStatus.REJECTED, code=error.error_code, reason=error.message
        )

    def lost(self, pair: PairRecord, name: str, error: TandemError) -> float:
        """A handoff broke off; returns the seconds of the cooldown."""
        return self._fail(
            pair,
            name,
            LaneStatus.LOST,
            code=LANE_FAILED,
            reason=f"a handoff over it broke off ({error.message})",
        )

    def delivered(self, pair: PairRecord, name: str) -> None:
        """A handoff arrived: the transport has a clean record."""
        record = pair.lanes.get(name)
        if record is not None and record.failures and record.status is LaneStatus.PROVEN:
            pair.lanes[name] = replace(record, failures=0)

    def _fail(
        self, pair: PairRecord, name: str, status: LaneStatus, *, code: str, reason: str
    ) -> float:
        before = pair.lanes.get(name, LaneRecord())
        failures = before.failures + 1
        seconds = self._cooldown.seconds(failures)
        pair.lanes[name] = LaneRecord(
            status=status,
            gbps=before.gbps,
            code=code,
            reason=reason,
            until=self._clock() + seconds,
            failures=failures,
        )
        return seconds
