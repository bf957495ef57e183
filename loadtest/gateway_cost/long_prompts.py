"""What a gateway adds to the first token of long prompts, sent as ready ids, one at a time.

Over HTTP and by the gRPC library that applications use, in turn. Every request has ids of its own.
"""

import asyncio
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.gateway_cost.processes import Running
from loadtest.gateway_cost.settings import CostSettings
from loadtest.gateway_cost.workers import MAX_MODEL_LEN
from loadtest.pair.clients import GrpcClient, HttpClient, PairClient, Question, Timed
from loadtest.pair.plan import ARMS, BASE, prompt_ids
from loadtest.spread import percentile, spread

_ANSWER_TOKENS = 2
_WARM_REQUESTS = 2
_CONFIG = "config.json"


def folder_without_bound(source: Path, target: Path) -> Path:
    """The tokenizer of a model folder in a new one, whose context is as long as the workers'."""
    target.mkdir()
    for file in source.glob("*.json"):
        shutil.copy(file, target)
    for template in source.glob("*.jinja"):
        shutil.copy(template, target)
    path = target / _CONFIG
    config = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(config | {"max_position_embeddings": MAX_MODEL_LEN}))
    return target


class LongPrompts:
    """Asks a gateway.

    Args:
        settings: lengths, and how many of each.
        vocab_size: of the tokenizer.
    """

    def __init__(self, settings: CostSettings, *, vocab_size: int) -> None:
        self._settings = settings
        self._vocab_size = vocab_size
        self._asked = 0

    async def run(self, gateway: Running) -> dict[str, dict[str, list[float]]]:
        """Milliseconds that were added to each request, by length and client.

        Raises:
            TandemError: a request was refused, or broke.
        """
        clients: Sequence[PairClient] = (
            HttpClient(f"http://{gateway.ready['rest']}"),
            GrpcClient(gateway.ready["grpc"]),
        )
        try:
            return {
                str(tokens): await self._length(clients, tokens)
                for tokens in self._settings.long_prompts
            }
        finally:
            for client in clients:
                client.close()

    async def _length(self, clients: Sequence[PairClient], tokens: int) -> dict[str, list[float]]:
        added: dict[str, list[float]] = {client.name: [] for client in clients}
        for number in range(-_WARM_REQUESTS, self._settings.long_requests):
            for client in clients:
                timed = await asyncio.to_thread(client.ask, self._question(tokens))
                if number >= 0:
                    added[client.name].append(_added_ms(timed))
        return added

    def _question(self, tokens: int) -> Question:
        self._asked += 1
        ids = prompt_ids(
            tokens, vocab_size=self._vocab_size, seed=self._settings.seed, number=self._asked
        )
        return Question(token_ids=ids, new_tokens=_ANSWER_TOKENS, arm=ARMS[BASE])


def long_summary(
    runs: Sequence[Mapping[str, Mapping[str, Sequence[float]]]],
) -> dict[str, dict[str, Any]]:
    """Added milliseconds over all requests of all runs, by length and client, JSON-ready."""
    return {
        tokens: {
            client: spread(values) | {"p25": percentile(values, 25), "requests": len(values)}
            for client in runs[0][tokens]
            if (values := [value for run in runs for value in run[tokens][client]])
        }
        for tokens in (runs[0] if runs else {})
    }


def _added_ms(timed: Timed) -> float:
    return (timed.ttft_s - timed.phase_s("prefill")) * 1000
