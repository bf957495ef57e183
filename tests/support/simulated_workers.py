"""What simulated workers share: they follow the protocol over real gRPC, without a model.

Their tokens are deterministic: a `Simulation` says which ids answer a prompt. Every RPC is
recorded, and actions can be planted at each phase of a call: wait, refuse, fail, die.

Phases of a prefill: call, queued, started, first_token, transfer, delivery, sealed. Phases of a
decode: call, accepted, then token:1, token:2 and so on, each before the token is sent.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from protos.tandem.v1 import (
    control_pb2,
    control_pb2_grpc,
)
from shared.errors import TandemError
from shared.rpc.server import RpcServer, build_server
from shared.tokenizer.tokenizer import Tokenizer
from shared.types.model_identity import ModelIdentity
from shared.types.options import RequestOptions
from shared.types.sampling import SampledToken, SamplingParams
from shared.wire.identity import identity_to_pb

IDENTITY = ModelIdentity(
    name="simulated",
    model_hash="0" * 64,
    dtype="float32",
    num_layers=2,
    num_kv_heads=1,
    head_dim=16,
    rope="default",
)

Answer = Callable[[Sequence[int]], list[int]]
"""Token ids that answer a prompt; repeated from the start when more are wanted."""


class Die:
    """The connection of this call breaks without a word from the worker."""


@dataclass(frozen=True)
class FailEvent:
    """The worker says in its stream that it failed."""

    error: TandemError


Action = float | asyncio.Event | TandemError | Die | FailEvent
"""Wait so many seconds or for an event, refuse with a status, break, or report a failure."""


@dataclass(frozen=True)
class Call:
    """One RPC that a worker saw, or `closed` when a stream ended before its last event."""

    worker_id: str
    method: str
    handoff_id: str = ""
    attempt: int = 0


@dataclass
class Plan:
    """Actions planted in one worker."""

    _at: dict[str, list[Action]] = field(default_factory=dict)

    def at(self, phase: str, action: Action, *, times: int = 1) -> None:
        """Plants an action; it happens at the next `times` calls that reach the phase."""
        self._at.setdefault(phase, []).extend([action] * times)

    async def reach(self, phase: str, context: grpc.aio.ServicerContext[Any, Any]) -> Action | None:
        """Carries out what is planted here; returns a FailEvent for the caller to send."""
        planted = self._at.get(phase)
        if not planted:
            return None
        action = planted.pop(0)
        if isinstance(action, float):
            await asyncio.sleep(action)
        elif isinstance(action, asyncio.Event):
            await action.wait()
        elif isinstance(action, TandemError):
            raise action
        elif isinstance(action, Die):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "socket closed")
        return action


class Simulation:
    """What all simulated workers share: the tokenizer, the answers, the record of calls."""

    def __init__(self, tokenizer: Tokenizer, *, answer: Answer, max_model_len: int = 1024) -> None:
        self.tokenizer = tokenizer
        self.answer = answer
        self.answers: list[list[int]] = []
        """Answers of the first branches, when they shall differ."""
        self.max_model_len = max_model_len
        self.calls: list[Call] = []
        self.sampling: list[SamplingParams] = []
        self.options: list[RequestOptions] = []
        self.deadlines_ms: list[int] = []
        self.grammars: list[str] = []
        """Of every call of either service."""
        self.earlier: list[tuple[int, ...]] = []
        """The answer's earlier tokens, of every call of either service."""
        self.token_delay_s = 0.0

    def record(self, worker_id: str, method: str, handoff: Any = None) -> None:
        """Notes an RPC."""
        name = (handoff.handoff_id, handoff.attempt) if handoff is not None else ("", 0)
        self.calls.append(Call(worker_id, method, *name))

    def methods(self, worker_id: str) -> list[str]:
        """Methods a worker saw, in order."""
        return [call.method for call in self.calls if call.worker_id == worker_id]

    async def seen(self, worker_id: str, method: str, *, timeout_s: float = 3.0) -> None:
        """Waits until a worker has seen a method."""
        async with asyncio.timeout(timeout_s):
            while method not in self.methods(worker_id):  # noqa: ASYNC110 - calls are a plain list
                await asyncio.sleep(0.01)

    def token(
        self, prompt: Sequence[int], index: int, logprobs: int | None, *, branch: int = 0
    ) -> SampledToken:
        """Token `index` of one answer."""
        ids = self.answers[branch] if branch < len(self.answers) else self.answer(prompt)
        token_id = ids[index % len(ids)]
        if logprobs is None:
            return SampledToken(token_id=token_id)
        top = tuple((token_id + i, -0.5 - i) for i in range(logprobs))
        return SampledToken(token_id=token_id, logprob=-0.5, top=top)


class SimulatedWorker:
    """A server with ControlService and the services of a role, which subclasses add.

    Args:
        simulation: shared state.
        worker_id: its name.
        identity: its model.
    """

    role = ""

    def __init__(
        self,
        simulation: Simulation,
        *,
        worker_id: str,
        identity: ModelIdentity = IDENTITY,
    ) -> None:
        self.simulation = simulation
        self.worker_id = worker_id
        self.identity = identity
        self.plan = Plan()
        self.draining = False
        self.methods_hash = "simulated"
        self.queued_tokens = 0
        self.local_prefill_tokens = 0
        self.early = False
        """A prefill worker says with the first tokens who gets the KV; a decode worker lets calls
        wait for it."""
        self.running = 0
        self._server: RpcServer | None = None

    @property
    def address(self) -> str:
        """host:port."""
        assert self._server is not None
        return self._server.address

    async def start(self, *, port: int = 0) -> None:
        """Begins to answer."""
        self._server = build_server(host="127.0.0.1", port=port, service_names=())
        server = self._server.server
        control_pb2_grpc.add_ControlServiceServicer_to_server(_Control(self), server)
        self._add_services(server)
        await self._server.start()

    def _add_services(self, server: grpc.aio.Server) -> None:
        raise NotImplementedError

    async def stop(self) -> None:
        """Ends at once; running calls break."""
        if self._server is not None:
            await self._server.stop()


class _Control(control_pb2_grpc.ControlServiceServicer):
    def __init__(self, worker: SimulatedWorker) -> None:
        self._worker = worker

    async def GetInfo(  # noqa: N802
        self, request: control_pb2.GetInfoRequest, context: Any
    ) -> control_pb2.GetInfoResponse:
        worker = self._worker
        role = control_pb2.ROLE_PREFILL if worker.role == "prefill" else control_pb2.ROLE_DECODE
        return control_pb2.GetInfoResponse(
            worker_id=worker.worker_id,
            incarnation=f"{worker.worker_id}-1",
            role=role,
            model=identity_to_pb(worker.identity),
            max_model_len=worker.simulation.max_model_len,
            device="cpu",
            transports=["grpc"],
            profile="simulated (not calibrated)",
            methods_hash=worker.methods_hash,
        )

    async def GetLoad(  # noqa: N802
        self, request: control_pb2.GetLoadRequest, context: Any
    ) -> control_pb2.GetLoadResponse:
        return control_pb2.GetLoadResponse(
            draining=self._worker.draining,
            queued_tokens=self._worker.queued_tokens,
            local_prefill_tokens=self._worker.local_prefill_tokens,
        )

    async def Drain(  # noqa: N802
        self, request: control_pb2.DrainRequest, context: Any
    ) -> control_pb2.DrainResponse:
        self._worker.draining = True
        return control_pb2.DrainResponse(running_requests=self._worker.running)
