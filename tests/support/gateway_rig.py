"""A gateway on free ports in front of simulated workers."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from gateway.app import Gateway
from gateway.config import GatewayConfig
from shared.tokenizer.tokenizer import Tokenizer
from tests.support.simulated_pair import SimulatedDecode, SimulatedPrefill, SimulatedReader
from tests.support.simulated_workers import Simulation

DEFAULT_ANSWER = "Hello world, the answer is 42."


@dataclass
class Rig:
    """Everything a test touches."""

    gateway: Gateway
    simulation: Simulation
    prefills: list[SimulatedPrefill]
    decodes: Sequence[SimulatedDecode]
    http: httpx.AsyncClient

    @property
    def url(self) -> str:
        """Base of the REST API."""
        return f"http://{self.gateway.rest_address}"

    async def chat(self, **fields: Any) -> httpx.Response:
        """Posts a chat completion."""
        body = {"model": "simulated", "messages": [{"role": "user", "content": "hi"}], **fields}
        return await self.http.post("/v1/chat/completions", json=body)

    async def complete(self, **fields: Any) -> httpx.Response:
        """Posts a plain completion."""
        body = {"model": "simulated", "prompt": "hi", **fields}
        return await self.http.post("/v1/completions", json=body)

    async def respond(self, **fields: Any) -> httpx.Response:
        """Posts a request for a response."""
        body = {"model": "simulated", "input": "hi", **fields}
        return await self.http.post("/v1/responses", json=body)

    def answer_with(self, text: str) -> None:
        """Every prompt is answered with `text` and the end-of-text token."""
        tokenizer = self.simulation.tokenizer
        ids = [*tokenizer.encode(text), tokenizer.eos_ids[0]]
        self.simulation.answer = lambda _prompt: ids

    def methods(self, worker: SimulatedPrefill | SimulatedDecode) -> list[str]:
        """RPCs that a worker saw."""
        return self.simulation.methods(worker.worker_id)


@asynccontextmanager
async def running_rig(
    folder: Path,
    *,
    prefills: int = 1,
    decodes: int = 1,
    max_model_len: int = 1024,
    reads_tokens: int = 0,
    **config: Any,
) -> AsyncIterator[Rig]:
    """Starts workers and a gateway that knows them.

    Args:
        folder: of the tokenizer.
        prefills: their number.
        decodes: their number.
        max_model_len: of all of them.
        reads_tokens: longest prompt that decode workers read themselves.
        config: settings of the gateway.
    """
    tokenizer = Tokenizer.from_folder(folder)
    ids = [*tokenizer.encode(DEFAULT_ANSWER), tokenizer.eos_ids[0]]
    simulation = Simulation(tokenizer, answer=lambda _prompt: ids, max_model_len=max_model_len)
    ps = [SimulatedPrefill(simulation, worker_id=f"p{i}") for i in range(prefills)]
    ds = [SimulatedReader(simulation, worker_id=f"d{i}") for i in range(decodes)]
    for reader in ds:
        reader.local_prefill_tokens = reads_tokens
    workers = [*ps, *ds]
    for worker in workers:
        await worker.start()
    settings: dict[str, Any] = {
        "port": 0,
        "grpc_port": 0,
        "admin_port": 0,
        "model_dir": str(folder),
        "prefill_workers": tuple(w.address for w in ps),
        "decode_workers": tuple(w.address for w in ds),
        "poll_interval_s": 0.1,
        "drain_timeout_s": 1.0,
    }
    gateway = Gateway(GatewayConfig(**(settings | config)))
    try:
        await gateway.start()
        base = f"http://{gateway.rest_address}"
        async with httpx.AsyncClient(base_url=base, timeout=20.0) as http:
            yield Rig(gateway, simulation, ps, ds, http)
    finally:
        await gateway.close()
        for worker in workers:
            await worker.stop()


async def until(holds: Callable[[], Awaitable[bool]], *, timeout_s: float = 5.0) -> None:
    """Waits until a condition over the network holds."""
    async with asyncio.timeout(timeout_s):
        while not await holds():  # noqa: ASYNC110 - the other side has no event to wait for
            await asyncio.sleep(0.02)


def strict_json(text: str) -> Any:
    """Parses JSON as other languages do: NaN and Infinity are errors."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def data_frames(raw: bytes) -> list[Any]:
    """Parsed data frames of an event stream; `[DONE]` stays text, comments are left out."""
    text = raw.decode("utf-8")
    assert text.endswith("\n\n"), "the last frame lacks its blank line"
    frames: list[Any] = []
    for frame in text.removesuffix("\n\n").split("\n\n"):
        assert "\n" not in frame, f"more than one line in {frame!r}"
        if frame.startswith(":"):
            continue
        assert frame.startswith("data: "), frame
        payload = frame.removeprefix("data: ")
        frames.append(payload if payload == "[DONE]" else strict_json(payload))
    return frames


def joined_text(frames: Sequence[Any]) -> str:
    """The text of a streamed answer."""
    pieces: list[str] = []
    for frame in frames:
        pieces += [
            choice.get("text") or choice.get("delta", {}).get("content") or ""
            for choice in (frame["choices"] if isinstance(frame, dict) else ())
        ]
    return "".join(pieces)
