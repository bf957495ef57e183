"""What a balancing policy sees and decides."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One worker that may take a request."""

    worker_id: str
    """Its name."""
    in_flight_tokens: int
    """Tokens that this gateway has dispatched to it and that are not finished."""
    reported_tokens: int
    """Tokens queued or running there by its own last report, of any gateway."""
    free_pages: int
    """Free KV pages by its last report; 0 for prefill workers."""

    @property
    def load(self) -> int:
        """Tokens at work there, as far as anybody knows.

        This gateway's own count is exact and immediate, the worker's report is older and includes
        other gateways: the larger of the two is believed.
        """
        return max(self.in_flight_tokens, self.reported_tokens)


class Balancer(Protocol):
    """Orders workers, the preferred one first. Called once a request and role."""

    def order(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """A permutation of `candidates`, which is not changed; empty in, empty out."""
        ...
