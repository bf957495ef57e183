"""A simulated prefill and a simulated decode worker in one process, over real gRPC.

They follow the protocol as a gateway sees it and compute nothing: `Script` has the tokens, and a
pace says when they come. The seed of a request picks its answer. Each prefill reports the seconds
that it took from the call to its first token, by its own clock.
"""

from __future__ import annotations  # grpc's generic types exist for the type checker only

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import grpc
import grpc.aio
import uvloop

from loadtest.gateway_cost.child import say_ready, until_told
from loadtest.gateway_cost.script import Script
from protos.tandem.v1 import (
    common_pb2,
    control_pb2,
    control_pb2_grpc,
    decode_pb2,
    decode_pb2_grpc,
    prefill_pb2,
    prefill_pb2_grpc,
)
from shared.rpc.options import server_options
from shared.tokenizer.tokenizer import Tokenizer
from shared.types.model_identity import ModelIdentity
from shared.wire.identity import identity_to_pb
from shared.wire.token_ids import ids_from_pb

MAX_MODEL_LEN = 1 << 20
"""No limit of its own: the tokenizer's counts."""

_IDENTITY = ModelIdentity(
    name="simulated",
    model_hash="0" * 64,
    dtype="float32",
    num_layers=1,
    num_kv_heads=1,
    head_dim=1,
    rope="default",
)
_TRANSFER_S = 0.002
_LEASE_MS = 30_000
_Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """When the tokens come."""

    prefill_s: float = 0.0
    """From the call to the first token."""
    token_s: float = 0.0
    """Between two later tokens; 0: as fast as the caller takes them."""
    tokens_per_message: int = 1
    """Tokens that one message carries."""


_called: ContextVar[float] = ContextVar("called")


class _Clock(grpc.aio.ServerInterceptor):
    """Starts a call's clock when its server hears of it: reading the request is the worker's."""

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Takes the time and changes nothing."""
        _called.set(time.perf_counter())
        return await continuation(handler_call_details)


class _Control(control_pb2_grpc.ControlServiceServicer):
    def __init__(self, worker_id: str, role: control_pb2.Role.ValueType) -> None:
        self._worker_id = worker_id
        self._role = role

    async def GetInfo(  # noqa: N802
        self, _request: control_pb2.GetInfoRequest, _context: _Context
    ) -> control_pb2.GetInfoResponse:
        return control_pb2.GetInfoResponse(
            worker_id=self._worker_id,
            incarnation=f"{self._worker_id}-1",
            role=self._role,
            model=identity_to_pb(_IDENTITY),
            max_model_len=MAX_MODEL_LEN,
            device="none",
            transports=["grpc"],
            profile="simulated",
            methods_hash="simulated",
        )

    async def GetLoad(  # noqa: N802
        self, _request: control_pb2.GetLoadRequest, _context: _Context
    ) -> control_pb2.GetLoadResponse:
        return control_pb2.GetLoadResponse()

    async def Drain(  # noqa: N802
        self, _request: control_pb2.DrainRequest, context: _Context
    ) -> control_pb2.DrainResponse:
        await _absent(context)


class _Prefill(prefill_pb2_grpc.PrefillServiceServicer):
    def __init__(self, script: Script, pace: Pace) -> None:
        self._script = script
        self._pace = pace

    async def Prefill(  # noqa: N802
        self, request: prefill_pb2.PrefillRequest, _context: _Context
    ) -> AsyncIterator[prefill_pb2.PrefillResponse]:
        called = _called.get()
        yield prefill_pb2.PrefillResponse(accepted=prefill_pb2.PrefillAccepted())
        kept = len(ids_from_pb(request.token_ids, request.packed_token_ids, param="prompt"))
        pruning = common_pb2.PruningSummary(kept_tokens=kept, reason="simulated")
        yield prefill_pb2.PrefillResponse(started=prefill_pb2.PrefillStarted(pruning=pruning))
        await asyncio.sleep(max(0.0, called + self._pace.prefill_s - time.perf_counter()))
        token_id = self._script.token_ids[self._script.start(request.sampling.seed)]
        first = prefill_pb2.FirstTokens(tokens=[common_pb2.SampledToken(token_id=token_id)])
        seconds = time.perf_counter() - called
        yield prefill_pb2.PrefillResponse(first_tokens=first)
        await asyncio.sleep(_TRANSFER_S if self._pace.prefill_s else 0.0)
        yield prefill_pb2.PrefillResponse(
            sealed=prefill_pb2.PrefillSealed(
                target=request.targets[0],
                transport="grpc",
                kept_tokens=kept,
                phases=[common_pb2.PhaseDuration(phase="prefill", seconds=seconds)],
                lease_ms=_LEASE_MS,
            )
        )

    async def Resend(  # noqa: N802
        self, _request: prefill_pb2.ResendRequest, context: _Context
    ) -> prefill_pb2.ResendResponse:
        await _absent(context)

    async def Renew(  # noqa: N802
        self, _request: prefill_pb2.RenewRequest, _context: _Context
    ) -> prefill_pb2.RenewResponse:
        return prefill_pb2.RenewResponse(lease_ms=_LEASE_MS)

    async def Release(  # noqa: N802
        self, _request: prefill_pb2.ReleaseRequest, _context: _Context
    ) -> prefill_pb2.ReleaseResponse:
        return prefill_pb2.ReleaseResponse(released=True)

    async def Cancel(  # noqa: N802
        self, _request: prefill_pb2.PrefillServiceCancelRequest, _context: _Context
    ) -> prefill_pb2.PrefillServiceCancelResponse:
        return prefill_pb2.PrefillServiceCancelResponse(cancelled=True)


class _Decode(decode_pb2_grpc.DecodeServiceServicer):
    def __init__(self, script: Script, pace: Pace) -> None:
        self._script = script
        self._pace = pace
        self._made: dict[tuple[int, int], decode_pb2.DecodeResponse] = {}

    async def Decode(  # noqa: N802
        self, request: decode_pb2.DecodeRequest, _context: _Context
    ) -> AsyncIterator[decode_pb2.DecodeResponse]:
        pace, wanted = self._pace, request.stop.max_tokens
        yield decode_pb2.DecodeResponse(accepted=decode_pb2.DecodeAccepted(worker_id="decode"))
        position, sent = self._script.start(request.sampling.seed) + 1, 1
        began = time.perf_counter()
        while sent < wanted:
            count = min(pace.tokens_per_message, wanted - sent)
            if pace.token_s:
                due = began + pace.token_s * (sent + count - 1)
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
            yield self._message(position % len(self._script.token_ids), count)
            position, sent = position + count, sent + count
        finished = decode_pb2.DecodeFinished(
            reason=common_pb2.FINISH_REASON_LENGTH, generated_tokens=sent
        )
        yield decode_pb2.DecodeResponse(finished=finished)

    async def Reserve(  # noqa: N802
        self, _request: decode_pb2.ReserveRequest, context: _Context
    ) -> decode_pb2.ReserveResponse:
        await _absent(context)

    async def Commit(  # noqa: N802
        self, _request: decode_pb2.CommitRequest, context: _Context
    ) -> decode_pb2.CommitResponse:
        await _absent(context)

    async def Cancel(  # noqa: N802
        self, _request: decode_pb2.DecodeServiceCancelRequest, _context: _Context
    ) -> decode_pb2.DecodeServiceCancelResponse:
        return decode_pb2.DecodeServiceCancelResponse(cancelled=True)

    async def Abort(  # noqa: N802
        self, _request: decode_pb2.AbortRequest, _context: _Context
    ) -> decode_pb2.AbortResponse:
        return decode_pb2.AbortResponse(drained=True)

    def _message(self, position: int, count: int) -> decode_pb2.DecodeResponse:
        """Made once: what a worker costs shall not hide what its callers cost."""
        found = self._made.get((position, count))
        if found is None:
            ids = self._script.token_ids
            batch = [
                common_pb2.SampledToken(token_id=ids[(position + index) % len(ids)])
                for index in range(count)
            ]
            found = decode_pb2.DecodeResponse(tokens=decode_pb2.TokenBatch(tokens=batch))
            self._made[position, count] = found
        return found


async def _absent(context: _Context) -> NoReturn:
    """What a gateway asks for only when something fails, or only the other worker asks for."""
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "a simulated worker moves no KV")


@dataclass(frozen=True, slots=True)
class SimulatedWorker:
    """A worker that runs."""

    address: str
    """host:port."""
    server: grpc.aio.Server
    """To be stopped."""


async def serve_pair(script: Script, pace: Pace) -> tuple[SimulatedWorker, SimulatedWorker]:
    """Starts a prefill and a decode worker on free ports of this machine; stop both when done.

    The servers are bare: a real worker's interceptors would count as time that its caller added.
    """
    prefill, decode = (
        grpc.aio.server(options=server_options(), interceptors=[_Clock()]) for _ in range(2)
    )
    roles = {"prefill": control_pb2.ROLE_PREFILL, "decode": control_pb2.ROLE_DECODE}
    for name, server in (("prefill", prefill), ("decode", decode)):
        control = _Control(name, roles[name])
        control_pb2_grpc.add_ControlServiceServicer_to_server(control, server)
    prefill_pb2_grpc.add_PrefillServiceServicer_to_server(_Prefill(script, pace), prefill)
    decode_pb2_grpc.add_DecodeServiceServicer_to_server(_Decode(script, pace), decode)
    return await _started(prefill), await _started(decode)


async def _started(server: grpc.aio.Server) -> SimulatedWorker:
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return SimulatedWorker(f"127.0.0.1:{port}", server)


async def _serve(folder: Path, pace: Pace) -> None:
    workers = await serve_pair(Script(Tokenizer.from_folder(folder)), pace)
    say_ready(prefill=workers[0].address, decode=workers[1].address)
    await until_told()
    for worker in workers:
        await worker.server.stop(None)


def main() -> None:
    """`python -m loadtest.gateway_cost.workers --model-dir FOLDER [pace]`."""
    flags = argparse.ArgumentParser(description="A simulated pair of workers.")
    flags.add_argument("--model-dir", type=Path, required=True)
    flags.add_argument("--prefill-s", type=float, default=0.0)
    flags.add_argument("--token-s", type=float, default=0.0)
    flags.add_argument("--tokens-per-message", type=int, default=1)
    given = flags.parse_args()
    pace = Pace(
        prefill_s=given.prefill_s,
        token_s=given.token_s,
        tokens_per_message=given.tokens_per_message,
    )
    uvloop.run(_serve(given.model_dir, pace))


if __name__ == "__main__":
    main()
