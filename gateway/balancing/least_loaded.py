"""The worker with the least work first."""

from collections.abc import Sequence

from gateway.balancing.base import Candidate


class LeastLoaded:
    """Orders by load; free pages, then a rotation, break ties."""

    def __init__(self) -> None:
        self._turn = 0

    def order(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Lightest first."""
        self._turn += 1
        ranked = sorted(candidates, key=lambda c: c.worker_id)
        count = len(ranked)
        places = {c.worker_id: (i + self._turn) % count for i, c in enumerate(ranked)}
        return sorted(
            ranked,
            key=lambda c: (c.load, -c.free_pages, places[c.worker_id]),
        )
