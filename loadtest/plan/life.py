"""One simulated request on its way."""

from dataclasses import dataclass

from loadtest.load.outcome import Outcome
from loadtest.plan.work import Work


@dataclass(slots=True, eq=False, kw_only=True)
class Life:
    """What has become of a request so far; moments in seconds of the simulation."""

    work: Work
    """What it asks for."""
    due: float
    """When it came."""
    decodes: tuple[int, ...] = ()
    """Decode workers that may take it, best first."""
    first_at: float | None = None
    """Its prompt was read."""
    joined_step: int = 0
    """Steps that its decode worker had done when it joined."""
    last_at: float | None = None
    """Its last token was there."""
    longest_gap: float = 0.0
    """Between two of its tokens."""
    failure: str | None = None
    """Why it was turned away."""

    def outcome(self, *, first_token_s: float) -> Outcome:
        """As a load run would have noted it.

        Args:
            first_token_s: what lies between the prompt's end and the client.
        """
        request = self.work.request
        if self.failure is not None:
            return Outcome(
                index=request.index,
                kind=request.kind.name,
                stage=0,
                due_s=self.due,
                started_s=self.due,
                failure=self.failure,
            )
        assert self.first_at is not None, "a request without failure was read"
        assert self.last_at is not None, "and answered"
        steps = self.work.steps
        spoken = self.last_at - self.first_at
        return Outcome(
            index=request.index,
            kind=request.kind.name,
            stage=0,
            due_s=self.due,
            started_s=self.due,
            e2e_s=self.last_at - self.due + first_token_s,
            ttft_s=self.first_at - self.due + first_token_s,
            itl_mean_s=spoken / steps if steps else None,
            itl_max_s=self.longest_gap if steps else None,
            tpot_s=spoken / steps if steps else None,
            prompt_tokens=request.prompt_tokens,
            answer_tokens=request.answer_tokens,
        )
