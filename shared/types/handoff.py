"""The life of a KV handoff."""

from dataclasses import dataclass
from enum import Enum

from shared.errors import StaleWriteError


@dataclass(frozen=True, slots=True, order=True)
class HandoffKey:
    """Names one attempt of one request."""

    handoff_id: str
    """Chosen by the gateway; one id end to end."""
    attempt: int = 1
    """Counts from 1."""


class HandoffState(Enum):
    """States of a handoff; the last four are terminal and sticky."""

    QUEUED = "queued"
    RESERVED = "reserved"
    STREAMING = "streaming"
    SEALED = "sealed"
    COMMITTED = "committed"
    ADOPTED = "adopted"
    ABORTING = "aborting"
    DRAINING = "draining"
    RELEASED = "released"
    ABORTED = "aborted"
    EXPIRED = "expired"

    @property
    def terminal(self) -> bool:
        """Whether nothing can follow."""
        return not TRANSITIONS[self]


_ANY = frozenset({HandoffState.ABORTING, HandoffState.EXPIRED})

TRANSITIONS: dict[HandoffState, frozenset[HandoffState]] = {
    HandoffState.QUEUED: _ANY | {HandoffState.RESERVED},
    HandoffState.RESERVED: _ANY | {HandoffState.STREAMING},
    HandoffState.STREAMING: _ANY | {HandoffState.SEALED},
    HandoffState.SEALED: _ANY | {HandoffState.COMMITTED},
    HandoffState.COMMITTED: _ANY | {HandoffState.ADOPTED},
    HandoffState.ADOPTED: _ANY | {HandoffState.RELEASED},
    HandoffState.ABORTING: frozenset({HandoffState.DRAINING, HandoffState.ABORTED}),
    HandoffState.DRAINING: frozenset({HandoffState.ABORTED}),
    HandoffState.RELEASED: frozenset(),
    HandoffState.ABORTED: frozenset(),
    HandoffState.EXPIRED: frozenset(),
}


class HandoffStateMachine:
    """Compare-and-set transitions of one handoff; late events are counted, never obeyed."""

    def __init__(self, key: HandoffKey, *, state: HandoffState = HandoffState.QUEUED) -> None:
        self.key = key
        self._state = state
        self.late_events = 0

    @property
    def state(self) -> HandoffState:
        """The current state."""
        return self._state

    def try_advance(self, to: HandoffState) -> bool:
        """Moves to `to` when that is allowed; otherwise counts a late event and returns False."""
        if to not in TRANSITIONS[self._state]:
            self.late_events += 1
            return False
        self._state = to
        return True

    def advance(self, to: HandoffState) -> None:
        """Moves to `to`.

        Raises:
            StaleWriteError: the transition is not allowed from the current state.
        """
        before = self._state
        if not self.try_advance(to):
            raise StaleWriteError(
                f"handoff {self.key.handoff_id} attempt {self.key.attempt} is {before.value} "
                f"and cannot become {to.value}: "
                "a late or repeated message; start a new attempt"
            )
