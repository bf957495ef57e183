"""The better one of two that chance picks."""

import random
from collections.abc import Sequence

from gateway.balancing.base import Candidate


class PowerOfTwo:
    """Draws two workers and prefers the lighter one.

    Several gateways that all send to the one lightest worker they know of would make it the
    heaviest before anybody notices; two draws spread them and still avoid the heavy ones.
    Mitzenmacher: The Power of Two Choices in Randomized Load Balancing (2001).

    Args:
        draw: source of chance.
    """

    def __init__(self, draw: random.Random | None = None) -> None:
        self._draw = draw if draw is not None else random.Random()  # noqa: S311 - no secret

    def order(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The winner of the draw, its rival, then the others in the order of further draws."""
        shuffled = self._draw.sample(list(candidates), k=len(candidates))
        return sorted(shuffled[:2], key=_weight) + shuffled[2:]


def _weight(candidate: Candidate) -> tuple[int, int]:
    return candidate.load, -candidate.free_pages
