"""Simulated prefill and decode workers."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc.aio

from protos.tandem.v1 import common_pb2, decode_pb2, decode_pb2_grpc, prefill_pb2, prefill_pb2_grpc
from shared.errors import (
    HandoffError,
    ManifestError,
    OverloadedError,
    TandemError,
    UnavailableError,
)
from shared.rpc.channel import open_channel
from shared.tokenizer.detokenizer import IncrementalDetokenizer
from shared.tokenizer.stop_filter import StopFilter
from shared.tokenizer.tokenizer import Tokenizer
from shared.types.sampling import FinishReason, SampledToken, StopConditions
from shared.types.token_ids import ids_from_bytes
from shared.wire.errors import error_to_pb
from shared.wire.options import options_from_pb
from shared.wire.sampling import finish_to_pb, sampling_from_pb, stop_from_pb, token_to_pb
from tests.support.simulated_workers import FailEvent, SimulatedWorker
from tests.support.waiting import until


class SimulatedPrefill(SimulatedWorker):
    """A prefill worker."""

    role = "prefill"

    def _add_services(self, server: grpc.aio.Server) -> None:
        prefill_pb2_grpc.add_PrefillServiceServicer_to_server(_Prefill(self), server)


class _Prefill(prefill_pb2_grpc.PrefillServiceServicer):
    def __init__(self, worker: SimulatedWorker) -> None:
        self._worker = worker
        self._held: dict[tuple[str, int], tuple[list[int], int, int]] = {}

    async def Prefill(  # noqa: N802
        self, request: prefill_pb2.PrefillRequest, context: Any
    ) -> AsyncIterator[prefill_pb2.PrefillResponse]:
        worker = self._worker
        worker.simulation.record(worker.worker_id, "Prefill", request.handoff)
        complete = False
        worker.running += 1
        try:
            await worker.plan.reach("call", context)
            async for response in self._run(request, context):
                yield response
            complete = True
        finally:
            worker.running -= 1
            if not complete:
                worker.simulation.record(worker.worker_id, "closed", request.handoff)

    async def _run(
        self, request: prefill_pb2.PrefillRequest, context: Any
    ) -> AsyncIterator[prefill_pb2.PrefillResponse]:
        plan, simulation = self._worker.plan, self._worker.simulation
        ids = list(ids_from_bytes(request.packed_token_ids))
        prompt = ids[: len(ids) - request.earlier_tokens]
        simulation.earlier.append(tuple(ids[len(prompt) :]))
        sampling = sampling_from_pb(request.sampling)
        simulation.sampling.append(sampling)
        simulation.options.append(options_from_pb(request.options))
        simulation.deadlines_ms.append(request.deadline_ms)
        simulation.grammars.append(request.grammar)
        branches = range(max(1, request.num_branches))
        firsts = [simulation.token(prompt, 0, sampling.logprobs, branch=b) for b in branches]
        if request.forced_first_tokens:
            assert len(request.forced_first_tokens) == len(branches)
            firsts = [SampledToken(token_id=t) for t in request.forced_first_tokens]
        started = prefill_pb2.PrefillStarted(queue_seconds=0.001)
        started.pruning.kept_tokens = max(1, len(prompt) // 2) + request.earlier_tokens
        started.pruning.pruned = True
        started.pruning.reason = "profile"
        steps: tuple[tuple[str, prefill_pb2.PrefillResponse], ...] = (
            ("queued", prefill_pb2.PrefillResponse(accepted=prefill_pb2.PrefillAccepted())),
            ("started", prefill_pb2.PrefillResponse(started=started)),
            (
                "first_token",
                prefill_pb2.PrefillResponse(
                    first_tokens=prefill_pb2.FirstTokens(
                        tokens=[token_to_pb(t) for t in firsts],
                        target=request.targets[0] if self._worker.early else None,
                    )
                ),
            ),
        )
        for phase, response in steps:
            action = await plan.reach(phase, context)
            if isinstance(action, FailEvent):
                yield prefill_pb2.PrefillResponse(failed=error_to_pb(action.error))
                return
            yield response
        action = await plan.reach("transfer", context)
        if isinstance(action, FailEvent):
            yield prefill_pb2.PrefillResponse(failed=error_to_pb(action.error))
            return
        held = prompt, request.earlier_tokens, len(branches)
        self._held[_name(request.handoff)] = held
        action = await plan.reach("delivery", context)
        if isinstance(action, FailEvent):
            yield prefill_pb2.PrefillResponse(failed=error_to_pb(action.error))
            return
        try:
            sealed = await self._deliver(request.handoff, request.targets, held)
        except TandemError as error:
            yield prefill_pb2.PrefillResponse(failed=error_to_pb(error))
            return
        await plan.reach("sealed", context)
        yield prefill_pb2.PrefillResponse(sealed=sealed)

    async def _deliver(
        self,
        handoff: common_pb2.HandoffKey,
        targets: Sequence[prefill_pb2.DecodeTarget],
        held: tuple[list[int], int, int],
    ) -> prefill_pb2.PrefillSealed:
        """Reserves on the first target that grants, and commits."""
        prompt, earlier, branches = held
        reached = False
        for target in targets:
            async with open_channel(target.address) as channel:
                stub = decode_pb2_grpc.DecodeServiceStub(channel)
                try:
                    answer = await stub.Reserve(
                        decode_pb2.ReserveRequest(handoff=handoff, num_branches=branches)
                    )
                except grpc.aio.AioRpcError:
                    continue
                reached = True
                if answer.HasField("busy"):
                    continue
                manifest = decode_pb2.Manifest(handoff=handoff, prompt_tokens=len(prompt))
                await stub.Commit(
                    decode_pb2.CommitRequest(manifest=manifest, prompt_token_ids=prompt)
                )
            return prefill_pb2.PrefillSealed(
                target=target,
                kv_bytes=1000 * (len(prompt) + earlier),
                transport="grpc",
                kept_tokens=max(1, len(prompt) // 2) + earlier,
                phases=[
                    common_pb2.PhaseDuration(phase="prefill", seconds=0.01),
                    common_pb2.PhaseDuration(phase="transfer", seconds=0.002),
                ],
                lease_ms=300,
            )
        if not reached:
            raise UnavailableError("nobody listens there; wait", code="no_decode_worker")
        raise OverloadedError("no decode worker has room; wait", retry_after_s=1.0)

    async def Resend(  # noqa: N802
        self, request: prefill_pb2.ResendRequest, context: Any
    ) -> prefill_pb2.ResendResponse:
        self._worker.simulation.record(self._worker.worker_id, "Resend", request.handoff)
        held = self._held.get(_name(request.handoff))
        if held is None:
            raise HandoffError("nothing is held under this name; start again")
        handoff = common_pb2.HandoffKey(
            handoff_id=request.handoff.handoff_id, attempt=request.new_attempt
        )
        sealed = await self._deliver(handoff, request.targets, held)
        return prefill_pb2.ResendResponse(sealed=sealed)

    async def Renew(  # noqa: N802
        self, request: prefill_pb2.RenewRequest, context: Any
    ) -> prefill_pb2.RenewResponse:
        self._worker.simulation.record(self._worker.worker_id, "Renew", request.handoffs[0])
        return prefill_pb2.RenewResponse(lease_ms=300)

    async def Release(  # noqa: N802
        self, request: prefill_pb2.ReleaseRequest, context: Any
    ) -> prefill_pb2.ReleaseResponse:
        self._worker.simulation.record(self._worker.worker_id, "Release", request.handoff)
        key = _name(request.handoff)
        return prefill_pb2.ReleaseResponse(released=self._held.pop(key, None) is not None)

    async def Cancel(  # noqa: N802
        self, request: prefill_pb2.PrefillServiceCancelRequest, context: Any
    ) -> prefill_pb2.PrefillServiceCancelResponse:
        self._worker.simulation.record(self._worker.worker_id, "Cancel", request.handoff)
        return prefill_pb2.PrefillServiceCancelResponse(cancelled=True)


class SimulatedDecode(SimulatedWorker):
    """A decode worker."""

    role = "decode"

    def _add_services(self, server: grpc.aio.Server) -> None:
        decode_pb2_grpc.add_DecodeServiceServicer_to_server(_Decode(self), server)


class SimulatedReader(SimulatedDecode):
    """A decode worker that reads prompts itself, as `local_prefill_tokens` says."""

    def _add_services(self, server: grpc.aio.Server) -> None:
        super()._add_services(server)
        prefill_pb2_grpc.add_PrefillServiceServicer_to_server(_Prefill(self), server)


class _Decode(decode_pb2_grpc.DecodeServiceServicer):
    def __init__(self, worker: SimulatedWorker) -> None:
        self._worker = worker
        self._adopted: dict[tuple[str, int], list[int]] = {}
        self._aborted: set[tuple[str, int]] = set()
        self._branches: dict[tuple[str, int], set[int]] = {}

    async def Reserve(  # noqa: N802
        self, request: decode_pb2.ReserveRequest, context: Any
    ) -> decode_pb2.ReserveResponse:
        self._worker.simulation.record(self._worker.worker_id, "Reserve", request.handoff)
        self._branches[_name(request.handoff)] = set(range(max(1, request.num_branches)))
        action = await self._worker.plan.reach("reserve", context)
        if isinstance(action, FailEvent):
            busy = decode_pb2.DecodeBusy(retry_after_ms=100, reason="pages_full")
            return decode_pb2.ReserveResponse(busy=busy)
        grant = decode_pb2.SlabGrant(slot=1, generation=1, lease_ms=1000, transports=["grpc"])
        return decode_pb2.ReserveResponse(grant=grant)

    async def Commit(  # noqa: N802
        self, request: decode_pb2.CommitRequest, context: Any
    ) -> decode_pb2.CommitResponse:
        self._adopted[_name(request.manifest.handoff)] = list(request.prompt_token_ids)
        return decode_pb2.CommitResponse(adopted=decode_pb2.Adopted(lease_ms=1000))

    async def Decode(  # noqa: N802
        self, request: decode_pb2.DecodeRequest, context: Any
    ) -> AsyncIterator[decode_pb2.DecodeResponse]:
        worker = self._worker
        worker.simulation.record(worker.worker_id, "Decode", request.handoff)
        worker.simulation.grammars.append(request.grammar)
        complete = False
        worker.running += 1
        try:
            await worker.plan.reach("call", context)
            async for response in self._run(request, context):
                yield response
            complete = True
        finally:
            worker.running -= 1
            if not complete:
                worker.simulation.record(worker.worker_id, "closed", request.handoff)

    async def _run(
        self, request: decode_pb2.DecodeRequest, context: Any
    ) -> AsyncIterator[decode_pb2.DecodeResponse]:
        plan, simulation = self._worker.plan, self._worker.simulation
        if self._worker.early:
            name = _name(request.handoff)
            await until(lambda: name in self._adopted or name in self._aborted)
        prompt = self._adopted.get(_name(request.handoff))
        waiting = self._branches.get(_name(request.handoff), set())
        if prompt is None or request.branch not in waiting:
            raise ManifestError("this handoff was never adopted here; send it again")
        waiting.remove(request.branch)
        await plan.reach("accepted", context)
        accepted = decode_pb2.DecodeAccepted(worker_id=self._worker.worker_id)
        yield decode_pb2.DecodeResponse(accepted=accepted)
        sampling = sampling_from_pb(request.sampling)
        ending = Ending(stop_from_pb(request.stop), simulation.tokenizer)
        simulation.earlier.append(tuple(request.earlier_tokens))
        for shown in (*request.earlier_tokens, request.first_token):
            ending.push(shown)
        index = len(request.earlier_tokens)
        while ending.reason is None:
            index += 1
            action = await plan.reach(f"token:{index}", context)
            if isinstance(action, FailEvent):
                yield _finished(FinishReason.ERROR, index, error=action.error)
                return
            await asyncio.sleep(simulation.token_delay_s)
            token = simulation.token(prompt, index, sampling.logprobs, branch=request.branch)
            ending.push(token.token_id)
            batch = decode_pb2.TokenBatch(tokens=[token_to_pb(token)])
            yield decode_pb2.DecodeResponse(tokens=batch)
        yield _finished(ending.reason, index, match=ending.match)

    async def Abort(  # noqa: N802
        self, request: decode_pb2.AbortRequest, context: Any
    ) -> decode_pb2.AbortResponse:
        self._worker.simulation.record(self._worker.worker_id, "Abort", request.handoff)
        self._aborted.add(_name(request.handoff))
        return decode_pb2.AbortResponse(drained=True)

    async def Cancel(  # noqa: N802
        self, request: decode_pb2.DecodeServiceCancelRequest, context: Any
    ) -> decode_pb2.DecodeServiceCancelResponse:
        self._worker.simulation.record(self._worker.worker_id, "Cancel", request.handoff)
        return decode_pb2.DecodeServiceCancelResponse(cancelled=True)


class Ending:
    """The stop rules of a decode worker, token by token."""

    def __init__(self, stop: StopConditions, tokenizer: Tokenizer) -> None:
        self._stop = stop
        self._text = IncrementalDetokenizer(tokenizer)
        self._filter = StopFilter(stop.strings)
        self._count = 0
        self.reason: FinishReason | None = None
        self.match = ""

    def push(self, token_id: int) -> None:
        """Counts a token and looks for the end."""
        self._count += 1
        armed = self._count >= self._stop.min_tokens
        self._filter.push(self._text.push([token_id]), armed=armed)
        if armed and token_id in self._stop.token_ids:
            self.reason, self.match = FinishReason.STOP, str(token_id)
        elif self._filter.matched is not None:
            self.reason, self.match = FinishReason.STOP, self._filter.matched
        elif self._count >= self._stop.max_tokens:
            self.reason = FinishReason.LENGTH


def _finished(
    reason: FinishReason, count: int, *, match: str = "", error: TandemError | None = None
) -> decode_pb2.DecodeResponse:
    finished = decode_pb2.DecodeFinished(
        reason=finish_to_pb(reason),
        stop_match=match,
        generated_tokens=count,
        attended=100 * count,
        dense=400 * count,
        phases=[common_pb2.PhaseDuration(phase="decode", seconds=0.02)],
        error=error_to_pb(error) if error is not None else None,
    )
    return decode_pb2.DecodeResponse(finished=finished)


def _name(handoff: common_pb2.HandoffKey) -> tuple[str, int]:
    return handoff.handoff_id, handoff.attempt
