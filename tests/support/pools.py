"""Several real workers and a gateway in this process, whose transfers break on order."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from decode_service.app import DecodeServer
from gateway.app import Gateway
from gateway.config import GatewayConfig
from shared.transport.fault_plan import Fault
from shared.transport.faulty import FaultyTransport
from tests.support.decode_server import assert_idle, decode_server, local_idle
from tests.support.prefill_worker import Worker, prefill_worker
from tests.support.waiting import until

_HALF = 0.5
PROMPT = "The quick brown fox jumps over the lazy dog. " * 8
NOT_CHOSEN = 1_000_000
"""Tokens in flight that make a worker the last choice."""


def after_the_canary(fault: Fault) -> tuple[str, str]:
    """Setting `faults` of a worker whose second transfer breaks: its first is the pair's canary."""
    for seed in count():
        draw = random.Random(seed)
        if draw.random() >= _HALF > draw.random():
            return f"{fault}={_HALF}", f"seed={seed}"
    raise AssertionError("seeds do not end")


@dataclass
class Orders:
    """A plan of faults that a test fills while everything runs."""

    waiting: list[Fault] = field(default_factory=list)
    """One a transfer, in order."""
    always: Fault | None = None
    """Of every transfer once `waiting` is used up."""
    made: list[Fault] = field(default_factory=list)
    """What happened."""
    then: Callable[[Fault], None] = lambda _fault: None
    """Called when one happens."""

    def next_transfer(self) -> tuple[Fault, ...]:
        if self.waiting:
            return (self.waiting.pop(0),)
        return () if self.always is None else (self.always,)

    def happened(self, fault: Fault) -> None:
        self.made.append(fault)
        self.then(fault)

    def clear(self) -> None:
        self.waiting.clear()
        self.made.clear()
        self.always = None
        self.then = lambda _fault: None


@dataclass(frozen=True)
class Answer:
    """What a client saw of a streamed answer."""

    text: str
    """All of it."""
    error: dict[str, Any] | None
    """The error frame, when one came."""
    done: bool
    """The stream ended with `[DONE]`."""
    report: dict[str, Any]
    """The `tandem` object; empty when it did not come."""
    usage: dict[str, Any] = field(default_factory=dict)
    """Token counts; empty when they did not come."""
    finish_reason: str | None = None
    """Why it ended."""
    logprobs: list[float] = field(default_factory=list)
    """Of its tokens, when the request asked."""


@dataclass
class Pool:
    """What a test touches."""

    gateway: Gateway
    prefills: list[Worker]
    decodes: list[DecodeServer]
    orders: Orders
    http: httpx.AsyncClient

    def body(self, **fields: Any) -> dict[str, Any]:
        """A greedy request for twelve tokens; `fields` override."""
        values: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0}
        return values | {"ignore_eos": True, "stream": True} | fields

    async def ask(self, on_text: Callable[[int], None] = lambda _n: None, **fields: Any) -> Answer:
        """A streamed answer to its end; `on_text` is told the number of frames with text so far."""
        text, frames, done = "", 0, False
        error: dict[str, Any] | None = None
        report: dict[str, Any] = {}
        usage: dict[str, Any] = {}
        finish_reason: str | None = None
        logprobs: list[float] = []
        body = self.body(stream_options={"include_usage": True}, **fields)
        async with self.http.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:  # it failed before anything could be streamed
                refused = json.loads(await response.aread())
                return Answer(text, refused["error"], done, report)
            async for line in response.aiter_lines():
                if not line.startswith("data: "):
                    continue
                assert not done, f"{line} after the end"
                if line == "data: [DONE]":
                    done = True
                    continue
                frame = json.loads(line.removeprefix("data: "))
                assert error is None, "something follows the error frame"
                error = frame.get("error")
                report = frame.get("tandem") or report
                usage = frame.get("usage") or usage
                for choice in frame.get("choices", ()):
                    text += choice["text"]
                    frames += bool(choice["text"])
                    finish_reason = choice["finish_reason"] or finish_reason
                    logprobs += (choice.get("logprobs") or {}).get("token_logprobs", ())
                on_text(frames)
        assert done or error is not None, "a stream ends with one or the other"
        return Answer(text, error, done, report, usage, finish_reason, logprobs)

    def avoided(self, role: str, address: str) -> Any:
        """While it lasts, the worker there is chosen last."""
        cards = self.gateway.workers._discovery.cards(role)
        (worker_id,) = [card.worker_id for card in cards if card.address == address]
        return self.gateway.workers.hold(worker_id, NOT_CHOSEN)

    async def acquaint(self, *addresses: str) -> None:
        """Every pair has had its canary, so that the next transfer is a handoff."""
        known = [*(decode.address for decode in self.decodes), *addresses]
        for met in known:
            async with AsyncExitStack() as others:
                for address in known:
                    if address != met:
                        others.enter_context(self.avoided("decode", address))
                await self.ask()

    async def nothing_left(self) -> None:
        """Pages, slots, leases, tasks and counters of every part are where they began."""
        gateway = self.gateway
        pipeline, entrance = gateway._pipeline, gateway._entrance
        assert pipeline is not None
        await until(lambda: pipeline.running.count == 0 and not gateway._background._tasks)
        for lane in (entrance.pool, entrance.local):
            line = lane.dispatcher
            assert (line.sent_prompts, line.sent_tokens, line.waiting) == (0, 0, 0)
        assert (entrance.queued_requests, entrance.queued_tokens) == (0, 0)
        for prefill in self.prefills:
            await prefill.expect_idle()
            engine = prefill.engine
            await until(lambda engine=engine: engine.load().held_handoffs == 0)  # type: ignore[misc]
        for decode in self.decodes:
            await local_idle(decode)
            worker = decode.core.worker
            await until(lambda worker=worker: worker.table.idle)  # type: ignore[misc]
            await until(lambda worker=worker: worker.intake.num_tasks == 0)  # type: ignore[misc]
            assert_idle(decode)


def break_transfers(worker: Worker, orders: Orders) -> None:
    """Puts faults into every transport of a worker that runs."""
    parts = worker.app._parts
    assert parts is not None
    for counted in parts.lanes.chosen.opened.values():
        counted._inner = FaultyTransport(counted._inner, orders, on_fault=orders.happened)


@asynccontextmanager
async def running_pool(
    model_dir: Path,
    profile: Path,
    *,
    prefills: int = 1,
    decodes: int = 1,
    more_prefills: Sequence[str] = (),
    more_decodes: Sequence[str] = (),
    prefill: Mapping[str, Any] | None = None,
    decode: Mapping[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Pool]:
    """Starts them; afterwards nothing may be left.

    Args:
        model_dir: what they serve.
        profile: of all workers.
        prefills: prefill workers of this process.
        decodes: decode workers of this process.
        more_prefills: addresses of prefill workers of other processes.
        more_decodes: addresses of decode workers of other processes.
        prefill: settings of the prefill workers.
        decode: settings of the decode workers.
        settings: of the gateway.
    """
    orders = Orders()
    async with AsyncExitStack() as stack:
        ds = [
            await stack.enter_async_context(decode_server(model_dir, profile, **(decode or {})))
            for _ in range(decodes)
        ]
        ps = []
        for _ in range(prefills):
            starting = prefill_worker(model_dir, profile=str(profile), **(prefill or {}))
            ps.append(await stack.enter_async_context(starting))
            break_transfers(ps[-1], orders)
        values: dict[str, Any] = {
            "port": 0,
            "grpc_port": 0,
            "admin_port": 0,
            "model_dir": str(model_dir),
            "prefill_workers": (*(p.app.address for p in ps), *more_prefills),
            "decode_workers": (*(d.address for d in ds), *more_decodes),
            "poll_interval_s": 0.1,
            "drain_timeout_s": 1.0,
            "retry_budget": 1.0,
        }
        gateway = Gateway(GatewayConfig(**(values | settings)))
        stack.push_async_callback(gateway.close)
        await gateway.start()
        base = f"http://{gateway.rest_address}"
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=base, timeout=60.0))
        pool = Pool(gateway, ps, ds, orders, http)
        wanted = {"prefill": prefills + len(more_prefills), "decode": decodes + len(more_decodes)}
        for role, count in wanted.items():
            await until(lambda role=role, count=count: gateway.workers.ready(role) >= count)  # type: ignore[misc]
        yield pool
        async with asyncio.timeout(30):
            await pool.nothing_left()
