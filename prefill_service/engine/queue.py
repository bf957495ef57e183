"""First come, first served, counted in prompt tokens."""

import asyncio
from collections import OrderedDict

from prefill_service.engine.job import PrefillJob
from shared.errors import OverloadedError
from shared.types.handoff import HandoffKey

FALLBACK_RETRY_S = 1.0
"""Seconds to wait before a retry while no speed has been measured."""

TELLING_TOKENS = 32
"""Passes of fewer tokens say nothing about speed: nearly all of their time is fixed."""

MAX_RETRY_S = 120.0
"""Longest advice for a retry."""


class SpeedMeter:
    """Recent prompt tokens per second: tokens over time, both as exponential averages over passes.

    So a pass of few tokens, whose time is mostly fixed, counts by its time alone.

    Args:
        weight: share of the newest pass in (0, 1].
    """

    def __init__(self, weight: float = 0.3) -> None:
        self._weight = weight
        self._tokens = 0.0
        self._seconds = 0.0

    @property
    def tokens_per_second(self) -> float:
        """0 while nothing was measured."""
        return self._tokens / self._seconds if self._seconds else 0.0

    def record(self, tokens: int, seconds: float) -> None:
        """Takes in one finished pass."""
        if seconds <= 0 or tokens < TELLING_TOKENS:
            return
        weight = self._weight if self._seconds else 1.0
        self._tokens += weight * (tokens - self._tokens)
        self._seconds += weight * (seconds - self._seconds)

    def seconds_for(self, tokens: int) -> float:
        """Estimated seconds for `tokens`, bounded, never below a tenth."""
        if self.tokens_per_second <= 0:
            return FALLBACK_RETRY_S
        return min(MAX_RETRY_S, max(0.1, tokens / self.tokens_per_second))


class TokenQueue:
    """Waiting prompts, bounded in tokens. A prompt above the bound enters an empty queue only.

    Args:
        max_tokens: bound of the waiting prompt tokens.
        speed: measured speed, for the advice when to retry.
    """

    def __init__(self, max_tokens: int, *, speed: SpeedMeter) -> None:
        self._max_tokens = max_tokens
        self._speed = speed
        self._jobs: OrderedDict[HandoffKey, PrefillJob] = OrderedDict()
        self._tokens = 0
        self._arrived = asyncio.Event()

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens waiting."""
        return self._tokens

    def __len__(self) -> int:
        """Prompts waiting."""
        return len(self._jobs)

    def put(self, job: PrefillJob) -> int:
        """Appends a prompt and returns the tokens ahead of it.

        Raises:
            OverloadedError: the bound would be passed, or the turn would come after the request's
                deadline; `retry_after_s` comes from measured speed.
        """
        ahead = self._tokens
        self._check_deadline(job, ahead)
        if self._jobs and ahead + job.tokens > self._max_tokens:
            wait = self._speed.seconds_for(ahead + job.tokens - self._max_tokens)
            raise OverloadedError(
                f"{ahead} prompt tokens wait and {job.tokens} more pass the bound of "
                f"{self._max_tokens}: this worker gets more work than it can do; "
                f"retry in {wait:.1f} s or add prefill workers",
                retry_after_s=wait,
            )
        self._jobs[job.key] = job
        self._tokens += job.tokens
        self._arrived.set()
        return ahead

    def _check_deadline(self, job: PrefillJob, ahead: int) -> None:
        """Refuses a prompt whose turn would come after its deadline.

        Only the wait counts: were a long prompt's own time estimated, a wrong estimate would keep
        it out for ever, and the estimate would never be corrected.
        """
        deadline_s = job.request.deadline_s
        if deadline_s is None or not ahead or self._speed.tokens_per_second <= 0:
            return
        wait = ahead / self._speed.tokens_per_second
        if wait > deadline_s:
            late = min(MAX_RETRY_S, max(0.1, wait - deadline_s))
            raise OverloadedError(
                f"{ahead} prompt tokens wait and take about {wait:.1f} s, but the request has only "
                f"{deadline_s:.1f} s left: this worker gets more work than it can do; retry in "
                f"{late:.1f} s, allow more time or add prefill workers",
                retry_after_s=late,
            )

    async def first(self) -> PrefillJob:
        """The first prompt, waiting for one; it stays where it is."""
        while not self._jobs:
            self._arrived.clear()
            await self._arrived.wait()
        return next(iter(self._jobs.values()))

    async def get(self) -> PrefillJob:
        """Takes the first prompt, waiting for one."""
        await self.first()
        _, job = self._jobs.popitem(last=False)
        self._tokens -= job.tokens
        return job

    def remove(self, key: HandoffKey) -> PrefillJob | None:
        """Takes one prompt out of turn, or None when it does not wait here."""
        job = self._jobs.pop(key, None)
        if job is not None:
            self._tokens -= job.tokens
        return job
