"""Which workers take a request: the gateway's balancers, made for thousands of choices a second.

The gateway's own classes look at every worker for every request. These choose workers of the same
load (a test compares them) from a heap, or from two draws. Links are taken for equal, so that the
gateway's preference for faster ones leaves the order as it is.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from random import Random
from typing import Protocol

from shared.errors import ConfigError


class Order(Protocol):
    """Chooses among equal workers by their load."""

    def choose(self, count: int) -> tuple[int, ...]:
        """The `count` preferred workers, or all if they are fewer."""

    def changed(self, worker: int) -> None:
        """The load of a worker is another one."""


class LeastLoaded:
    """The lightest first; of equal ones the one that was not chosen for the longest time.

    Args:
        loads: tokens at each worker; changed by the owner.
    """

    def __init__(self, loads: Sequence[int]) -> None:
        self._loads = loads
        self._turns = list(range(len(loads)))
        self._turn = len(loads)
        self._heap: list[tuple[int, int, int]] = []
        self._refill()

    def choose(self, count: int) -> tuple[int, ...]:
        """The lightest ones; the first of them goes to the end of its equals."""
        found: list[tuple[int, int, int]] = []
        while self._heap and len(found) < count:
            entry = heappop(self._heap)
            load, turn, worker = entry
            current = load == self._loads[worker] and turn == self._turns[worker]
            # A load that came back to an earlier value has left an equal entry behind.
            if current and entry not in found:
                found.append(entry)
        for entry in found[1:]:
            heappush(self._heap, entry)
        self._turn += 1
        self._turns[found[0][2]] = self._turn
        self.changed(found[0][2])
        return tuple(worker for _, _, worker in found)

    def changed(self, worker: int) -> None:
        """Files the worker under its new load."""
        heappush(self._heap, (self._loads[worker], self._turns[worker], worker))
        if len(self._heap) > 64 + 8 * len(self._loads):
            self._refill()

    def _refill(self) -> None:
        workers = range(len(self._loads))
        self._heap = list(zip(self._loads, self._turns, workers, strict=True))
        heapify(self._heap)


class PowerOfTwo:
    """The lighter of two that chance picks, its rival, then further draws.

    Args:
        loads: tokens at each worker; changed by the owner.
        random: source of chance.
    """

    def __init__(self, loads: Sequence[int], random: Random) -> None:
        self._loads = loads
        self._random = random

    def choose(self, count: int) -> tuple[int, ...]:
        """Draws anew."""
        wanted = min(len(self._loads), max(2, count))
        drawn = self._random.sample(range(len(self._loads)), k=wanted)
        drawn[:2] = sorted(drawn[:2], key=self._loads.__getitem__)
        return tuple(drawn[:count])

    def changed(self, worker: int) -> None:
        """Nothing is kept."""


class RoundRobin:
    """Each in turn.

    Args:
        loads: of the workers; only their number counts.
    """

    def __init__(self, loads: Sequence[int]) -> None:
        self._count = len(loads)
        self._turn = 0

    def choose(self, count: int) -> tuple[int, ...]:
        """The next ones."""
        start, self._turn = self._turn, self._turn + 1
        return tuple((start + i) % self._count for i in range(min(count, self._count)))

    def changed(self, worker: int) -> None:
        """Loads do not count."""


BALANCERS = ("least_loaded", "power_of_two", "round_robin")
"""Names of the gateway's setting."""


def order_of(balancer: str, loads: Sequence[int], random: Random) -> Order:
    """The order of a name.

    Raises:
        ConfigError: it is unknown.
    """
    if balancer == "least_loaded":
        return LeastLoaded(loads)
    if balancer == "power_of_two":
        return PowerOfTwo(loads, random)
    if balancer == "round_robin":
        return RoundRobin(loads)
    raise ConfigError(f"balancer {balancer!r} is unknown: choose one of {', '.join(BALANCERS)}")
