"""Tokens a second through many streams side by side, when workers send as fast as they are read."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from loadtest.gateway_cost.client import Exchange, chat_request, connect
from loadtest.gateway_cost.settings import CostSettings
from loadtest.spread import spread

PROMPT = "Say something long."


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """One run."""

    tokens: int
    """Counted by the answers' usage."""
    frames: int
    """Chunks with text."""
    seconds: float
    """From the first request to the end of the last stream."""
    cpu_s: Mapping[str, float]
    """Processor time that each process used meanwhile."""

    @property
    def tokens_per_s(self) -> float:
        """Over all streams."""
        return self.tokens / self.seconds


def summary(runs: Sequence[Flow]) -> dict[str, object]:
    """Medians and spread, JSON-ready."""
    return {
        "tokens_per_s": spread([run.tokens_per_s for run in runs]),
        "cpu_s_per_1000_tokens": {
            name: spread([run.cpu_s[name] / run.tokens * 1000 for run in runs])
            for name in runs[0].cpu_s
        },
        "tokens_per_chunk": spread([run.tokens / run.frames for run in runs]),
    }


async def all_at_once(
    address: str, settings: CostSettings, *, model: str
) -> list[tuple[int, Exchange]]:
    """Every stream at once against `host:port`; seed and stream of each.

    Raises:
        UnavailableError: a stream broke, or a request was refused.
    """
    async with AsyncExitStack() as cleanup:
        asked = []
        for seed in range(settings.streams):
            connection = await connect(address)
            cleanup.callback(connection.close)
            request = chat_request(
                model=model, prompt=PROMPT, seed=seed, max_tokens=settings.stream_tokens
            )
            asked.append((connection, request))
        exchanges = await asyncio.gather(
            *(connection.ask(request) for connection, request in asked)
        )
    return list(enumerate(exchanges))


def seconds_of(exchanges: Sequence[Exchange]) -> float:
    """From the first request to the end of the last stream."""
    return max(each.ended for each in exchanges) - min(each.sent for each in exchanges)
