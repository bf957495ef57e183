"""How busy a decode worker is: one snapshot for the control service, the card and the metrics."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from decode_service.engine.kv_cache import PagedKvCache
from decode_service.engine.worker import DecodeWorker
from shared.kv.geometry import PAGE_SIZE
from shared.kv.slab import Slab

RATE_WINDOW_S = 10.0
"""Seconds over which tokens per second are averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoad:
    """Load at one moment."""

    draining: bool
    """No new grants."""
    running: int
    """Rows that have taken part in a step."""
    waiting: int
    """Rows that wait for their first step."""
    free_pages: int
    """Pages free, over both length groups."""
    total_pages: int
    """Pages in all."""
    free_slab_bytes: int
    """Bytes of the landing slab in no lease."""
    quarantined_slab_bytes: int
    """Bytes that wait for their writers to go away."""
    total_slab_bytes: int
    """Bytes of the landing slab."""
    stalled_seconds: float
    """Seconds without progress while there is work."""
    tokens_per_second: float
    """Recent rate."""
    kv_tokens: int
    """Tokens of unpruned context that the KV cache holds in all."""
    max_batch: int
    """Rows of one step at most."""
    queued_tokens: int = 0
    """Prompt tokens that wait for the prefill engine beside; 0 without one."""
    local_prefill_tokens: int = 0
    """Longest prompt that the prefill engine beside would take now; 0: none."""


class TokenRate:
    """Tokens per second over a sliding window.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since = clock()
        self._counts: deque[tuple[float, int]] = deque()
        self._sum = 0

    def add(self, tokens: int) -> None:
        """Counts tokens that were generated just now."""
        self._counts.append((self._clock(), tokens))
        self._sum += tokens
        self._trim()

    def per_second(self) -> float:
        """The rate; over the age of the process while that is shorter than the window."""
        self._trim()
        age = self._clock() - self._since
        return self._sum / max(1.0, min(age, RATE_WINDOW_S))

    def _trim(self) -> None:
        oldest = self._clock() - RATE_WINDOW_S
        while self._counts and self._counts[0][0] < oldest:
            self._sum -= self._counts.popleft()[1]


def measure_load(
    worker: DecodeWorker, *, cache: PagedKvCache, slab: Slab, rate: TokenRate, max_batch: int
) -> WorkerLoad:
    """Takes a snapshot; on the event loop."""
    pools = [pool.pages for pool in cache.pools.values() if pool.layers]
    return WorkerLoad(
        draining=worker.table.draining,
        running=worker.engine.num_running,
        waiting=worker.engine.num_waiting,
        free_pages=sum(pages.num_free for pages in pools),
        total_pages=sum(pages.num_pages for pages in pools),
        free_slab_bytes=slab.free_bytes,
        quarantined_slab_bytes=slab.quarantined_bytes,
        total_slab_bytes=slab.total_bytes,
        stalled_seconds=worker.engine.stalled_seconds,
        tokens_per_second=rate.per_second(),
        kv_tokens=min(pages.num_pages for pages in pools) * PAGE_SIZE,
        max_batch=max_batch,
    )
