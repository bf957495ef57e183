"""Adds up the time of pieces of a prompt's work, on the processor that does the work."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch


class Stopwatch(Protocol):
    """Sums laps."""

    def lap(self) -> AbstractContextManager[None]:
        """A context whose time counts; laps do not nest."""

    def seconds(self) -> float:
        """The sum so far; on a CUDA device it waits for the work that was timed."""


class HostStopwatch:
    """For work that is done when its call returns."""

    def __init__(self) -> None:
        self._seconds = 0.0

    @contextmanager
    def lap(self) -> Iterator[None]:
        """See `Stopwatch.lap`."""
        started = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - started

    def seconds(self) -> float:
        """See `Stopwatch.seconds`."""
        return self._seconds


class CudaStopwatch:
    """For work that a call only enqueues: events in its stream mark where it begins and ends."""

    def __init__(self) -> None:
        self._laps: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def lap(self) -> Iterator[None]:
        """See `Stopwatch.lap`."""
        before, after = _event(), _event()
        before.record()
        yield
        after.record()
        self._laps.append((before, after))

    def seconds(self) -> float:
        """See `Stopwatch.seconds`."""
        if self._laps:
            self._laps[-1][1].synchronize()
        return sum(float(before.elapsed_time(after)) for before, after in self._laps) / 1e3


def stopwatch_for(device: torch.device) -> Stopwatch:
    """The one that is right for work on `device`."""
    return CudaStopwatch() if device.type == "cuda" else HostStopwatch()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
