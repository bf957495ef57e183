"""A prefill worker of the tiny model inside the test's own loop, and what its callers need."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from prefill_service.app import PrefillApp
from prefill_service.config import PrefillConfig
from prefill_service.engine.capture import CapturedKv
from prefill_service.engine.engine import PrefillEngine
from prefill_service.engine.job import PromptRequest
from prefill_service.engine.plan import PromptPlan
from prefill_service.engine.prompt_pass import PackedPrompt
from prefill_service.engine.runner import PrefillOutput, PrefillRunner
from protos.tandem.v1 import common_pb2, prefill_pb2, prefill_pb2_grpc
from shared.rpc.channel import open_channel
from shared.telemetry.spans import SpanSource
from shared.types.handoff import HandoffKey
from shared.types.kv_manifest import SegmentKind
from shared.types.options import RequestOptions
from shared.types.sampling import SamplingParams, StopConditions
from shared.wire.identity import handoff_from_pb
from tests.support.decode_peer import DecodePeer
from tests.support.transfer_parts import needs_nixl
from tests.support.waiting import until

if TYPE_CHECKING:
    from protos.tandem.v1.prefill_pb2_grpc import PrefillServiceAsyncStub

PER_HEAD_PROFILE = """
source = "made for tests: every kind of layout"
[pruning]
pruning_layer = { value = 3, source = "test" }
aggregation_window = { value = 2, source = "test" }
deferred_layers = { value = 1, source = "test" }
kv_select = { value = "head", source = "test" }
keep_rate = { value = 0.25, source = "test" }
bypass_below = { value = 32, source = "test" }
[sparsity]
full_layers = { value = [0, 1, 3], source = "test" }
"""

MEMORIES: dict[str, dict[str, Any]] = {
    "host": {"kv_memory": "host"},
    "device": {"kv_memory": "device", "transports": ("nixl", "grpc"), "buffer_bytes": 1 << 26},
}
"""Settings by the kind of memory in which KV waits; the device is the CPU here."""

EACH_MEMORY = [
    pytest.param("host"),
    pytest.param("device", marks=needs_nixl),
]
"""Parameters of a fixture that starts a worker with each of them."""

SOON_S = 5.0
"""Less than the time after which a worker gives up waiting for room by itself."""

_ids = itertools.count(1)


class GatedRunner:
    """The real runner, which can be made to wait between two layers."""

    def __init__(self, inner: PrefillRunner) -> None:
        self._inner = inner
        self.gate = threading.Event()
        self.gate.set()
        self.hang = threading.Event()
        """While clear, a run stands still and answers nobody."""
        self.hang.set()
        self.reached = threading.Event()
        self.runs = 0
        self.packs: list[int] = []
        """Prompts of each pass."""
        self.device = inner.device

    def run_pack(
        self, prompts: Sequence[PackedPrompt], *, ended: Callable[[int, Exception], None]
    ) -> list[PrefillOutput | Exception]:
        self.runs += len(prompts)
        self.packs.append(len(prompts))
        gated = [replace(prompt, stop=self._gated(prompt.stop)) for prompt in prompts]
        return self._inner.run_pack(gated, ended=ended)

    def _gated(self, stop: Callable[[], bool]) -> Callable[[], bool]:
        calls = itertools.count()

        def gated() -> bool:
            if next(calls) < 2:
                return stop()
            self.reached.set()
            self.hang.wait()
            while not self.gate.wait(0.002):
                if stop():
                    return True
            return stop()

        return gated

    async def wait_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, 10)


@dataclass(slots=True)
class Worker:
    """A running worker."""

    app: PrefillApp
    stub: "PrefillServiceAsyncStub"
    channel: Any
    runner: GatedRunner
    targets: list[DecodePeer] = field(default_factory=list)

    @property
    def engine(self) -> PrefillEngine:
        return self.app.engine

    def plan(self, token_ids: Sequence[int], **options: Any) -> PromptPlan:
        """What the worker decides about a prompt."""
        assert self.app._parts is not None
        request = PromptRequest(
            key=HandoffKey("plan"),
            token_ids=tuple(token_ids),
            sampling=SamplingParams(),
            stop=StopConditions(max_tokens=1),
            options=RequestOptions(**options),
            targets=(),
        )
        return self.app._parts.planner(request)

    async def expect_idle(self) -> None:
        """Everything is back to zero: prompts, tasks, memory of prompts that run."""
        async with asyncio.timeout(5):
            await self.engine._idle.wait()
            await asyncio.gather(*self.engine._tasks)
        load = self.engine.load()
        assert load.queued_requests == load.queued_tokens == load.running_requests == 0
        assert load.active_bytes == 0
        assert load.stalled_seconds == 0
        parts = self.app._parts
        if parts is not None:
            assert parts.slabs.num_leases == load.held_handoffs

    async def wait_load(self, **expected: float) -> None:
        """Waits until the engine's load shows these values."""
        await until(
            lambda: all(getattr(self.engine.load(), k) == v for k, v in expected.items()),
            timeout_s=SOON_S,
        )

    def time_is_up(self, request: prefill_pb2.PrefillRequest) -> None:
        """The timer of a prompt's deadline goes off now, however late it was set."""
        job = self.engine._jobs[handoff_from_pb(request.handoff)]
        assert job.timer is not None, "asked for with a deadline"
        job.timer._run()

    async def run(self, request: prefill_pb2.PrefillRequest) -> list[Any]:
        """Every event of a prompt, as the messages inside the `oneof`."""
        return [event_of(response) async for response in self.stub.Prefill(request, timeout=30)]


@asynccontextmanager
async def prefill_worker(
    model_dir: Path, *, spans: SpanSource | None = None, **settings: Any
) -> AsyncIterator[Worker]:
    """Starts a worker on free ports and ends it."""
    defaults: dict[str, Any] = {"port": 0, "admin_port": 0, "chunk_tokens": 48}
    config = PrefillConfig(**(defaults | {"model": str(model_dir)} | settings))
    app = PrefillApp(config, spans=spans)
    try:
        await app.start()
        assert app._parts is not None
        runner = GatedRunner(app._parts.runner)
        app._parts.compute._runner = runner  # type: ignore[assignment]
        channel = open_channel(app.address)
        try:
            yield Worker(app, prefill_pb2_grpc.PrefillServiceStub(channel), channel, runner)
        finally:
            runner.gate.set()
            runner.hang.set()
            await channel.close()
    finally:
        await app.close()


@asynccontextmanager
async def decode_peers(worker: Worker, count: int = 1, **arguments: Any) -> AsyncIterator[Any]:
    """Starts scripted decode workers of the worker's model."""
    assert worker.app._parts is not None
    peers = [
        DecodePeer(worker.app._parts.model, worker_id=f"d{index}", **arguments)
        for index in range(count)
    ]
    try:
        for peer in peers:
            await peer.start()
        yield peers
    finally:
        for peer in peers:
            await peer.stop()


def prompt_ids(length: int, *, seed: int = 0) -> list[int]:
    """Random token ids of the tiny vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 512, (length,), generator=generator).tolist()


def prompt_request(
    token_ids: Sequence[int], peers: Sequence[DecodePeer], **fields: Any
) -> prefill_pb2.PrefillRequest:
    """A greedy request with a fresh handoff; `fields` override."""
    values: dict[str, Any] = {
        "handoff": common_pb2.HandoffKey(handoff_id=f"h{next(_ids)}", attempt=1),
        "token_ids": token_ids,
        "sampling": common_pb2.SamplingParams(temperature=0.0),
        "stop": common_pb2.StopConditions(max_tokens=8),
        "targets": [target_of(peer) for peer in peers],
    }
    return prefill_pb2.PrefillRequest(**(values | fields))


def target_of(peer: DecodePeer) -> prefill_pb2.DecodeTarget:
    """How a request names a peer."""
    return prefill_pb2.DecodeTarget(worker_id=peer.worker_id, address=peer.address)


def event_of(response: prefill_pb2.PrefillResponse) -> Any:
    """The message inside the `oneof`."""
    kind = response.WhichOneof("event")
    assert kind is not None
    return getattr(response, kind)


def kinds(events: Sequence[Any]) -> list[str]:
    """Names of events without progress."""
    names = [type(event).__name__ for event in events]
    return [name for name in names if name != "PrefillProgress"]


def expected_slab(worker: Worker, token_ids: Sequence[int], plan: PromptPlan) -> dict[int, bytes]:
    """Bytes by segment offset, made straight from what the runner tells a capturing observer."""
    captured = CapturedKv(plan)
    worker.runner._inner.run(token_ids=token_ids, plan=plan, observer=captured, stop=lambda: False)
    found: dict[int, bytes] = {}
    for segment in plan.slab.segments:
        if segment.kind is SegmentKind.KV:
            keys, values = captured.layer(segment.index)
            tensor = torch.stack([keys, values]).contiguous()
        else:
            tensor = captured.positions_RN[segment.index].contiguous()
        found[segment.offset] = tensor.view(torch.uint8).numpy().tobytes()
    return found
