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
    """Of `total_pages`, as large a share as is free of the fuller length group; see `PageUse`."""
    total_pages: int
    """Pages in all."""
    held_pages: int
    """Pages held, over both length groups."""
    kv_utilization: float
    """Share of pages held in the fuller length group."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PageUse:
    """How full a KV cache is.

    A request takes pages of both length groups, so the cache is as full as the fuller one. Groups
    of unlike size (`rest_share`) fill unlike fast: their sum would hide that one is full.
    """

    total: int
    """Pages of both groups."""
    held: int
    """Pages held, of both groups."""
    share: float
    """Share of pages held in the fuller group."""
    free: int
    """As large a share of `total` as the fuller group has free, rounded down."""

    @classmethod
    def of(cls, cache: PagedKvCache) -> "PageUse":
        """Counts the pages of a cache."""
        pools = [pool.pages for pool in cache.pools.values() if pool.layers]
        total = sum(pages.num_pages for pages in pools)
        return cls(
            total=total,
            held=total - sum(pages.num_free for pages in pools),
            share=max(1 - pages.num_free / pages.num_pages for pages in pools),
            free=min(total * pages.num_free // pages.num_pages for pages in pools),
        )


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
    use = PageUse.of(cache)
    pools = [pool.pages for pool in cache.pools.values() if pool.layers]
    return WorkerLoad(
        draining=worker.table.draining,
        running=worker.engine.num_running,
        waiting=worker.engine.num_waiting,
        free_pages=use.free,
        total_pages=use.total,
        held_pages=use.held,
        kv_utilization=use.share,
        free_slab_bytes=slab.free_bytes,
        quarantined_slab_bytes=slab.quarantined_bytes,
        total_slab_bytes=slab.total_bytes,
        stalled_seconds=worker.engine.stalled_seconds,
        tokens_per_second=rate.per_second(),
        kv_tokens=min(pages.num_pages for pages in pools) * PAGE_SIZE,
        max_batch=max_batch,
    )
