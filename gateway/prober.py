"""A second look at workers that a call could not reach: a dead one is known at once."""

import asyncio
from collections.abc import Iterable

import structlog

from gateway.clients.events import Target
from gateway.workers import Workers

_LONGEST_S = 1.0

_log = structlog.get_logger(__name__)


class Prober:
    """Knocks at the ports of workers and tells `Workers` where nobody listens.

    It opens connections of its own: a gRPC channel that could not connect repeats its last failure
    for a while, also when the worker is back.

    Args:
        workers: told of those that are gone.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    async def look(self, targets: Iterable[Target]) -> None:
        """Looks at all of them; returns within a second, whatever they do."""
        await asyncio.gather(*(self._look_at(target) for target in targets))

    async def _look_at(self, target: Target) -> None:
        host, _, port = target.address.rpartition(":")
        try:
            async with asyncio.timeout(_LONGEST_S):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except ConnectionRefusedError:
            _log.warning("worker is gone: nobody listens there", worker=target.worker_id)
            self._workers.gone(target.worker_id)
        except (OSError, TimeoutError) as error:
            _log.warning("worker is out of reach", worker=target.worker_id, why=str(error))
        else:
            writer.close()
