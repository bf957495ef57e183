"""How fast prompts are served, measured: the truth behind every advice to come back later."""

import time
from collections.abc import Callable

_HALF_LIFE_S = 30.0


class ServiceRate:
    """Prompt tokens per second of all prefill workers together.

    Speed is tokens over worker-seconds: an idle worker does not make the others look slow. Old
    work loses half its weight with every half minute of work.

    Args:
        workers: number of prefill workers now.
        clock: monotonic seconds.
    """

    def __init__(
        self, workers: Callable[[], int], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._workers = workers
        self._clock = clock
        self._seen = clock()
        self._busy_s = 0.0
        self._tokens = 0.0
        self._in_service = 0

    def begin(self) -> None:
        """A prompt was sent to a worker."""
        self._advance()
        self._in_service += 1

    def end(self, tokens: int) -> None:
        """A prompt left the workers: `tokens` were read, 0 when it failed or was cancelled."""
        self._advance()
        self._in_service -= 1
        self._tokens += tokens

    @property
    def tokens_per_second(self) -> float:
        """The rate with the workers there are; 0 while nothing has been served."""
        self._advance()
        if self._busy_s <= 0 or self._tokens <= 0:
            return 0.0
        return self._tokens / self._busy_s * max(1, self._workers())

    def _advance(self) -> None:
        now = self._clock()
        passed, self._seen = now - self._seen, now
        # A worker computes one pass at a time; more prompts than workers do not keep it busier.
        working = self._in_service
        if working > 1:
            working = min(working, max(1, self._workers()))
        spent = passed * working
        if spent <= 0:
            return
        fading = 0.5 ** (spent / working / _HALF_LIFE_S)
        self._busy_s = self._busy_s * fading + spent
        self._tokens *= fading
