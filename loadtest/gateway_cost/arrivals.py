"""Time to first token of requests that arrive while other streams are open."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from random import Random

from loadtest.gateway_cost.client import Connection, Exchange, chat_request, connect
from loadtest.gateway_cost.settings import CostSettings
from loadtest.spread import percentile, spread
from shared.errors import UnavailableError

_MARGIN_S = 30.0
"""How much longer than the arrivals the open streams could go on."""

_LONGEST_ANSWER = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One request that arrived."""

    seed: int
    """Names its answer."""
    late_s: float
    """How late it was sent: what this machine's client lost before the clock was started."""
    exchange: Exchange
    """Its stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokens:
    """Times of one run, in milliseconds."""

    ttft_ms: tuple[float, ...]
    """From the request to its first text, by the client's clock."""
    worker_ms: tuple[float, ...]
    """Of those, what the prefill worker measured."""
    late_ms: tuple[float, ...]
    """How late the requests were sent."""

    @property
    def added_ms(self) -> list[float]:
        """What is not the worker's: network, gateway, client, and waiting for a core."""
        return [all_of - of_it for all_of, of_it in zip(self.ttft_ms, self.worker_ms, strict=True)]


def poisson_moments(rate: float, seconds: float, *, rng: Random) -> Iterator[float]:
    """Moments in `[0, seconds)` with exponential gaps."""
    at = rng.expovariate(rate)
    while at < seconds:
        yield at
        at += rng.expovariate(rate)


def summary(runs: Sequence[FirstTokens]) -> dict[str, object]:
    """Percentiles over all requests of all runs, and how the runs differ, JSON-ready."""
    added = [value for run in runs for value in run.added_ms]
    return {
        "requests": len(added),
        "added_ttft_ms": {
            "p50": percentile(added, 50),
            "p90": percentile(added, 90),
            "p99": percentile(added, 99),
            "max": max(added),
        },
        "added_ttft_p50_ms_by_run": spread([percentile(run.added_ms, 50) for run in runs]),
        "added_ttft_p99_ms_by_run": spread([percentile(run.added_ms, 99) for run in runs]),
        "worker_ms_p50": percentile([value for run in runs for value in run.worker_ms], 50),
        "client_late_ms_p99": percentile([value for run in runs for value in run.late_ms], 99),
    }


class ArrivingLoad:
    """Requests at Poisson moments beside streams that stay open.

    Args:
        settings: how many, how long.
        model: name that the requests carry.
        prompt: text of about the prompt's length.
    """

    def __init__(self, settings: CostSettings, *, model: str, prompt: str) -> None:
        self._settings = settings
        self._model = model
        self._prompt = prompt

    async def run(self, address: str, *, seed: int) -> list[Sample]:
        """One run against `host:port`; the open streams are left at its end.

        Raises:
            UnavailableError: a stream broke, or a request was refused.
        """
        settings, rng = self._settings, Random(seed)
        async with AsyncExitStack() as cleanup:
            await self._open_streams(address, cleanup)
            idle = [await connect(address) for _ in range(settings.open_streams)]
            for connection in idle:
                cleanup.callback(connection.close)
            samples: list[asyncio.Task[Sample]] = []
            began = time.perf_counter()
            moments = poisson_moments(settings.arrivals_per_s, settings.seconds, rng=rng)
            for number, moment in enumerate(moments):
                await asyncio.sleep(began + moment - time.perf_counter())
                connection = idle.pop(0) if idle else await self._another(address, cleanup)
                ask = self._arrive(connection, number, due=began + moment, idle=idle)
                samples.append(asyncio.create_task(ask))
            return list(await asyncio.gather(*samples))

    async def _arrive(
        self, connection: Connection, number: int, *, due: float, idle: list[Connection]
    ) -> Sample:
        request = self._request(number, tokens=self._settings.answer_tokens)
        late_s = time.perf_counter() - due
        exchange = await connection.ask(request)
        idle.append(connection)
        return Sample(seed=number, late_s=late_s, exchange=exchange)

    async def _another(self, address: str, cleanup: AsyncExitStack) -> Connection:
        connection = await connect(address)
        cleanup.callback(connection.close)
        return connection

    async def _open_streams(self, address: str, cleanup: AsyncExitStack) -> None:
        """Begins the streams, a little apart so that their tokens are too."""
        settings, loop = self._settings, asyncio.get_running_loop()
        tokens = min(_LONGEST_ANSWER, round((settings.seconds + _MARGIN_S) / settings.token_s))
        begun: list[asyncio.Future[None]] = []
        for number in range(settings.open_streams):
            connection = await self._another(address, cleanup)
            begun.append(loop.create_future())
            request = self._request(number, tokens=tokens)
            stream = asyncio.create_task(connection.ask(request, begun=begun[-1]))
            cleanup.push_async_callback(_leave, connection, stream)
            await asyncio.sleep(settings.token_s / settings.open_streams)
        await asyncio.gather(*begun)

    def _request(self, number: int, *, tokens: int) -> bytes:
        prompt = f"{number}. {self._prompt}"
        return chat_request(model=self._model, prompt=prompt, seed=number, max_tokens=tokens)


async def _leave(connection: Connection, stream: asyncio.Task[Exchange]) -> None:
    """Closes an open stream; that it was still open is what the run relied on.

    Raises:
        UnavailableError: it had ended by itself.
    """
    ended = stream.done()
    connection.close()
    (outcome,) = await asyncio.gather(stream, return_exceptions=True)
    if ended:
        raise UnavailableError(
            "a stream that was to stay open ended during the run: the machine is too slow for so "
            "many seconds; take fewer"
        ) from outcome if isinstance(outcome, BaseException) else None
