"""What /health/ready says while a worker starts, serves, stalls and drains."""

import contextlib
import time
from collections.abc import Iterator

import structlog

from shared.model.progress import Progress
from shared.telemetry.admin import Readiness

_log = structlog.get_logger(__name__)


class ReadinessBoard:
    """The current word on readiness; read from the loop, set from any thread.

    Args:
        faults: made on purpose; a worker that makes any says so for as long as it serves.
    """

    def __init__(self, *, faults: str = "") -> None:
        self.current = Readiness(ready=False, phase="starting", progress=0.0)
        self._faults = faults

    @contextlib.contextmanager
    def startup(self, phase: str, detail: str) -> Iterator[None]:
        """One step of the start: shown while it lasts, logged with its time afterwards."""
        self.current = Readiness(ready=False, phase=phase, progress=0.0, detail=detail)
        began = time.perf_counter()
        yield
        _log.info("startup", step=detail, seconds=round(time.perf_counter() - began, 3))

    def progressed(self, progress: Progress) -> None:
        """Progress of work on model files; every tenth is logged."""
        share = progress.done / progress.total if progress.total else 0.0
        before = self.current.progress
        detail = f"{progress.stage} {progress.done}/{progress.total or '?'}"
        self.current = Readiness(ready=False, phase="loading", progress=share, detail=detail)
        if int(share * 10) != int(before * 10):
            _log.info("loading", stage=progress.stage, percent=round(share * 100))

    def serving(self) -> None:
        """New work is welcome."""
        detail = f"faults on purpose: {self._faults}" if self._faults else ""
        self.current = Readiness(ready=True, detail=detail)

    def stalled(self, seconds: float) -> None:
        """The engine hangs."""
        detail = f"no progress for {seconds:g} s with work at hand"
        self.current = Readiness(ready=False, phase="failed", detail=detail)

    def draining(self) -> None:
        """No new work."""
        self.current = Readiness(ready=False, phase="draining")
