"""An answer whose decode worker died after tokens were sent: may it go on at another pair?

Never unless the operator and the request both allow it: what is generated anew after pruning, or by
another page policy's memory, may differ from what would have come.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum

import structlog

from gateway.retry_budget import RetryBudget
from gateway.run_state import RunState
from shared.errors import TandemError, UnavailableError

MAX_REPLAYS = 1
"""Of one request: an answer that kills its workers must not go round all of them."""

_log = structlog.get_logger(__name__)


class ReplayOutcome(StrEnum):
    """What came of an answer that lost its decode worker; a metric label."""

    COMPLETED = "completed"
    """It went on at another pair to its end."""
    FAILED = "failed"
    """It was to go on, and then ended with an error."""
    CLIENT_LEFT = "client_left"
    """It was to go on, and then its client left."""
    OPERATOR_FORBIDS = "operator_forbids"
    """Not tried: `replay_answers` is off."""
    NOT_ASKED = "not_asked"
    """Not tried: the request does not allow it."""
    SEVERAL_ANSWERS = "several_answers"
    """Not tried: the request has several answers, which would each need a prompt of its own."""
    NO_BUDGET = "no_budget"
    """Not tried: too many of the recent requests were tried again."""


class Replays:
    """Decides, and counts what came of it.

    Args:
        allowed: the operator's choice.
        budget: of all retries together.
        on_outcome: told of every answer that lost its decode worker, once.
    """

    def __init__(
        self, *, allowed: bool, budget: RetryBudget, on_outcome: Callable[[str], None]
    ) -> None:
        self._allowed = allowed
        self._budget = budget
        self._on_outcome = on_outcome
        self._outcomes: Counter[str] = Counter()

    def begin(self, state: RunState, error: TandemError) -> bool:
        """Whether an answer goes on after this failure in mid-stream; if so, `state` is told.

        Only the loss of a worker is a reason: one that calculated wrongly or refused would again.
        """
        if not isinstance(error, UnavailableError):
            return False
        if state.replays >= MAX_REPLAYS:  # `watched` counts how it ended
            self._tell(state, "used up")
            return False
        refusal = self._refusal(state)
        if refusal is not None:
            state.out_of_budget = refusal is ReplayOutcome.NO_BUDGET
            self._count(refusal)
            self._tell(state, refusal.value)
            return False
        self._tell(state, "begins")
        state.begin_replay()
        return True

    @contextmanager
    def watched(self, state: RunState) -> Iterator[None]:
        """Counts how a replay ended, if there was one in the block."""
        outcome = ReplayOutcome.FAILED
        try:
            yield
            outcome = ReplayOutcome.COMPLETED
        except (asyncio.CancelledError, GeneratorExit):
            outcome = ReplayOutcome.CLIENT_LEFT
            raise
        finally:
            if state.replays:
                self._count(outcome)

    def describe(self) -> dict[str, object]:
        """The operator's choice and what came of lost answers, for health answers."""
        return {
            "allowed": self._allowed,
            "outcomes": {outcome.value: self._outcomes[outcome] for outcome in ReplayOutcome},
        }

    def _refusal(self, state: RunState) -> ReplayOutcome | None:
        checks = (
            (not self._allowed, ReplayOutcome.OPERATOR_FORBIDS),
            (not state.job.options.replay, ReplayOutcome.NOT_ASKED),
            (state.job.branches > 1, ReplayOutcome.SEVERAL_ANSWERS),
        )
        for refused, why in checks:
            if refused:
                return why
        return None if self._budget.take() else ReplayOutcome.NO_BUDGET

    def _tell(self, state: RunState, replay: str) -> None:
        _log.warning(
            "decode worker lost in mid-stream",
            handoff_id=state.handoff_id,
            shown_tokens=[len(tokens) for tokens in state.shown],
            replay=replay,
        )

    def _count(self, outcome: ReplayOutcome) -> None:
        self._outcomes[outcome] += 1
        self._on_outcome(outcome.value)
