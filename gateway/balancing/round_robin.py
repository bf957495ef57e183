"""Each worker in turn."""

from collections.abc import Sequence

from gateway.balancing.base import Candidate


class RoundRobin:
    """Rotates by one place a call; blind to load, good for equal workers and equal requests."""

    def __init__(self) -> None:
        self._turn = 0

    def order(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The candidates by name, rotated."""
        ranked = sorted(candidates, key=lambda c: c.worker_id)
        if not ranked:
            return []
        start = self._turn % len(ranked)
        self._turn += 1
        return ranked[start:] + ranked[:start]
