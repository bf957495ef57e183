"""One line of prompts: how many may wait, and in which order they go on."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from gateway.admission import Admission, Ticket, Waiting
from gateway.config import GatewayConfig
from gateway.dispatcher import Dispatcher
from gateway.job import GenerationJob
from gateway.service_rate import ServiceRate


@dataclass(frozen=True, slots=True)
class Lane:
    """Prompts that wait for workers of one kind."""

    admission: Admission
    """Bounds of the line."""
    dispatcher: Dispatcher
    """Its order."""

    def enter(self, job: GenerationJob, *, clock: Callable[[], float] = time.monotonic) -> Ticket:
        """A place at its end.

        Raises:
            OverloadedError: it is full, or too long for this request's time.
            UnavailableError: the gateway is shutting down.
        """
        tokens, principal = len(job.prompt_ids), job.principal
        waiting = Waiting(
            ahead_tokens=self.dispatcher.ahead(tokens, principal),
            remaining_s=job.deadline - clock(),
        )
        return self.admission.enter(tokens, principal=principal, waiting=waiting)


def open_lane(config: GatewayConfig, *, workers: Callable[[], int]) -> Lane:
    """A line by the settings.

    Args:
        config: its bounds.
        workers: number of workers that take its prompts; with none, nobody waits in vain.
    """
    rate = ServiceRate(workers)
    admission = Admission(
        config.queue_tokens,
        max_requests=config.queue_requests,
        max_wait_s=config.queue_wait_s,
        tokens_per_second=lambda: rate.tokens_per_second,
    )
    return Lane(admission, Dispatcher(config.worker_prompt_tokens, workers=workers, rate=rate))
