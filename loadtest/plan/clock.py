"""The event loop of a simulation: SimPy's, with plain callbacks."""

from collections.abc import Callable

import simpy


class Clock:
    """Simulated time. Callbacks cost a third of what a SimPy process does, and are many."""

    def __init__(self) -> None:
        self._environment = simpy.Environment()
        self._over = self._environment.event()

    @property
    def now(self) -> float:
        """Seconds since the simulation began."""
        moment: float = self._environment.now
        return moment

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Calls back later; at one moment, in the order of the asking."""
        timeout = self._environment.timeout(max(0.0, seconds))
        timeout.callbacks.append(lambda _: call())

    def stop(self) -> None:
        """Ends `run`; once."""
        self._over.succeed()

    def run(self) -> None:
        """Runs until `stop`."""
        self._environment.run(until=self._over)
