"""Values of the reservation table: what is asked for, what is answered, one handoff's record."""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from decode_service.engine.branches import Branches
from decode_service.engine.kv_cache import SequencePages
from decode_service.engine.sequence import PromptKv
from shared.errors import StaleWriteError
from shared.kv.slab import SlabLease
from shared.types.handoff import HandoffKey, HandoffState, HandoffStateMachine
from shared.types.kv_manifest import KvManifest, PruningSummary
from shared.types.model_identity import ModelIdentity

if TYPE_CHECKING:  # it logs, and benches that fill pages have no logger
    from decode_service.engine.arrival import Arrival

TOKEN_BYTES = 16
"""Random bytes of a grant's token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveSpec:
    """What a prefill worker asks room for."""

    handoff: HandoffKey
    """Which handoff."""
    model: ModelIdentity
    """The asker's model."""
    prompt_tokens: int
    """KV slots of every whole layer."""
    kept_tokens: int
    """KV slots of every pruned layer."""
    whole_layers: int
    """Layers 0..whole_layers-1 are kept whole."""
    slab_bytes: int
    """Bytes of the slab."""
    max_new_tokens: int
    """Tokens to generate, the first one included."""
    num_branches: int = 1
    """Answers that share the prompt."""
    pruning: PruningSummary | None = None
    """What the prompt will be pruned with; None: said at the commit alone."""


class BusyReason(Enum):
    """Why there is no room now."""

    SLAB_FULL = "slab_full"
    PAGES_FULL = "pages_full"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """No room now."""

    reason: BusyReason
    """What is missing."""
    retry_after_s: float
    """When to ask again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationLimits:
    """Durations and sizes that the table enforces."""

    lease_s: float = 30.0
    """Life of a grant without a sign of its writer."""
    adopt_lease_s: float = 30.0
    """Life of adopted KV without a Decode call."""
    quarantine_s: float = 30.0
    """Longest wait for the writer of a given-up slot."""
    remember_s: float = 120.0
    """How long ended handoffs are remembered."""
    remember_max: int = 10_000
    """How many ended handoffs are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedKv:
    """A verified KV cache in pages."""

    manifest: KvManifest
    """What was promised and verified."""
    branches: tuple[PromptKv, ...]
    """Its pages and positions as each answer sees them; the first one's hold the prompt."""
    prompt_ids: tuple[int, ...]
    """Prompt tokens, or nothing when no penalty looks at them."""
    seconds: float
    """Duration of verification and scatter."""

    @property
    def prompt(self) -> PromptKv:
        """As the first answer sees it."""
        return self.branches[0]


@dataclass(slots=True)
class HandoffCounters:
    """Totals since the start."""

    granted: int = 0
    busy: int = 0
    adopted: int = 0
    released: int = 0
    aborted: int = 0
    expired: int = 0
    late: int = 0
    tokens_refused: int = 0


@dataclass(slots=True, eq=False)
class Reservation:
    """One handoff that holds something here."""

    spec: ReserveSpec
    lease: SlabLease
    pages: SequencePages
    """Of the first answer: the prompt and room to grow. Held until all answers are over."""
    machine: HandoffStateMachine
    deadline: float | None
    """Clock time at which the lease ends; None while the engine works on it."""
    writer_active: bool = False
    """A push stream has shown life and has not ended."""
    pinned: bool = False
    """The intake reads the slab or writes the pages."""
    own_pages: dict[int, SequencePages] = field(default_factory=dict)
    """Of each further answer that is not over."""
    arrival: "Arrival | None" = None
    """Brings segments into the pages as they land; None: the commit does all of it."""
    sums: tuple[int, ...] = ()
    """Of its segments, where the end of the push brought them."""
    adopted: AdoptedKv | None = None
    """Set by the intake once the pages hold the prompt."""
    holds_slab: bool = True
    """False after the slab slot was given back or put in quarantine."""
    token: bytes = field(default_factory=partial(secrets.token_bytes, TOKEN_BYTES), repr=False)
    """What its writer must show; never logged."""
    branches: Branches = field(init=False)
    """Its answers."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.branches = Branches(self.spec.num_branches)

    @property
    def running(self) -> bool:
        """Whether the engine works on any of its answers."""
        return bool(self.branches.running)

    @property
    def key(self) -> HandoffKey:
        """Which handoff."""
        return self.spec.handoff

    @property
    def state(self) -> HandoffState:
        """Where it stands."""
        return self.machine.state

    def stop_arrival(self) -> None:
        """Nothing touches its slab or its pages on behalf of what landed, from now on."""
        if self.arrival is not None:
            self.arrival.abandon()
            self.arrival = None

    def seal(self, sums: Sequence[int], *, deadline: float) -> None:
        """Its push ended well, with sums or without; whoever waits for that hears of it."""
        self.deadline = deadline
        if self.state is HandoffState.RESERVED:
            self.machine.advance(HandoffState.STREAMING)
        self.machine.advance(HandoffState.SEALED)
        self.sums = tuple(sums)
        self.notify()

    def notify(self) -> None:
        """Wakes those who wait for a change of state."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def leave(self, states: frozenset[HandoffState], *, timeout_s: float | None) -> None:
        """Waits until the state is none of `states` or time is over; the caller looks again.

        Without a time it is the lease that ends the wait, by ending the handoff.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while self.state in states:
                    await self._changed.wait()
        except TimeoutError:
            return


class PastHandoffs:
    """Ended handoffs, remembered for a while and in bounded number.

    Args:
        remember_s: how long.
        remember_max: how many.
    """

    def __init__(self, *, remember_s: float, remember_max: int) -> None:
        self._remember_s = remember_s
        self._remember_max = remember_max
        self._machines: OrderedDict[HandoffKey, tuple[HandoffStateMachine, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._machines)

    def remember(self, machine: HandoffStateMachine, *, now: float) -> None:
        """Keeps an ended (or draining) handoff in mind; the oldest one makes room."""
        self._machines[machine.key] = (machine, now + self._remember_s)
        if len(self._machines) > self._remember_max:
            self._machines.popitem(last=False)

    def late(self, key: HandoffKey) -> HandoffState | None:
        """Counts a late message; its handoff's state, or None when it is unknown or forgotten."""
        known = self._machines.get(key)
        if known is None:
            return None
        known[0].late_events += 1
        return known[0].state

    def forget(self, now: float) -> None:
        """Drops what is older than the given time allows."""
        while self._machines:
            key, (_, forget_at) = next(iter(self._machines.items()))
            if forget_at > now:
                return
            del self._machines[key]


def stale(key: HandoffKey, what: str) -> StaleWriteError:
    """The error of a late, repeated or unknown message about a handoff."""
    return StaleWriteError(
        f"handoff {key.handoff_id!r} attempt {key.attempt} {what}: a late, repeated or unknown "
        "message, or its lease ran out; start a new attempt"
    )


def not_granted(slot: int, generation: int) -> StaleWriteError:
    """The error of a write into a slot that its writer does not hold."""
    return StaleWriteError(
        f"slab slot {slot} generation {generation} is not granted (any more): the handoff ended "
        "or its lease ran out; start a new attempt"
    )
