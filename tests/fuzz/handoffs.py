"""Handoffs that go wrong: genuine KV of the running prefill worker, damaged on its way."""

import itertools
from dataclasses import dataclass
from random import Random

import grpc.aio

from protos.tandem.v1 import common_pb2, decode_pb2, prefill_pb2, prefill_pb2_grpc
from shared.rpc.channel import open_channel
from shared.transport.frames import FrameKind, encode_frame
from shared.transport.greeting import TOKEN_KEY
from shared.types.handoff import HandoffKey
from shared.types.model_identity import ModelIdentity
from shared.wire.manifest import manifest_to_pb
from tests.fuzz.exchange import Outcome
from tests.fuzz.proto_messages import damaged, tweak
from tests.fuzz.rpc_calls import call, judged
from tests.support.decode_peer import DecodePeer

_DECODE = "/tandem.v1.DecodeService"
_PUSH = "/tandem.v1.TransferService/Push"
_NEW_TOKENS = 4

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Genuine:
    """One handoff as the prefill worker made it."""

    reserve: decode_pb2.ReserveRequest
    """What it asked for."""
    commit: decode_pb2.CommitRequest
    """What it promised; slot, generation and token are those of another grant."""
    image: bytes
    """The slab."""


class RecordingPeer(DecodePeer):
    """A decode worker that remembers what it was asked for."""

    def __init__(self, model: ModelIdentity) -> None:
        super().__init__(model)
        self.asked: list[decode_pb2.ReserveRequest] = []

    async def Reserve(  # noqa: N802
        self,
        request: decode_pb2.ReserveRequest,
        context: "grpc.aio.ServicerContext[object, object]",
    ) -> decode_pb2.ReserveResponse:
        self.asked.append(request)
        return await super().Reserve(request, context)


async def genuine(prefill_address: str, model: ModelIdentity, *, tokens: int) -> Genuine:
    """Lets the running prefill worker deliver a prompt to a peer of ours."""
    peer = RecordingPeer(model)
    await peer.start()
    key = HandoffKey(f"genuine-{next(_numbers)}")
    try:
        async with open_channel(prefill_address) as channel:
            stub = prefill_pb2_grpc.PrefillServiceStub(channel)
            handoff = common_pb2.HandoffKey(handoff_id=key.handoff_id, attempt=key.attempt)
            request = prefill_pb2.PrefillRequest(
                handoff=handoff,
                token_ids=[index % 200 for index in range(tokens)],
                stop=common_pb2.StopConditions(max_tokens=_NEW_TOKENS),
                targets=[prefill_pb2.DecodeTarget(worker_id="peer", address=peer.address)],
            )
            async for _ in stub.Prefill(request, timeout=30):
                pass
            await stub.Release(prefill_pb2.ReleaseRequest(handoff=handoff))
        adopted = peer.adopted[key]
        commit = decode_pb2.CommitRequest(
            manifest=manifest_to_pb(adopted.manifest), prompt_token_ids=adopted.prompt_token_ids
        )
        return Genuine(peer.asked[0], commit, adopted.data)
    finally:
        await peer.stop()


async def handoff(rng: Random, channel: grpc.aio.Channel, real: Genuine) -> Outcome:
    """Reserve, push, commit, decode and abort, each of which may be damaged."""
    key = common_pb2.HandoffKey(handoff_id=f"fuzzed-{next(_numbers)}", attempt=1)
    step = _Steps(rng, channel)
    grant = await _reserved(step, real, key)
    if grant is not None:
        await step.push(real, grant)
    commit = decode_pb2.CommitRequest()
    commit.CopyFrom(real.commit)
    commit.manifest.handoff.CopyFrom(key)
    if grant is not None:
        commit.slot, commit.generation, commit.token = grant.slot, grant.generation, grant.token
    await step.send("Commit", commit, spoil=0.6)
    decode = decode_pb2.DecodeRequest(
        handoff=key,
        first_token=real.commit.manifest.first_tokens[0].token_id,
        stop=common_pb2.StopConditions(max_tokens=_NEW_TOKENS),
        deadline_ms=rng.choice([0, 0, 1, 50]),
    )
    await step.send("Decode", decode, spoil=0.5, leave_after=rng.choice([-1, -1, 0, 1, 2]))
    if rng.random() < 0.95:
        await step.send("Abort", decode_pb2.AbortRequest(handoff=key, reason="fuzz"), spoil=0.0)
    return step.outcome()


async def _reserved(
    step: "_Steps", real: Genuine, key: common_pb2.HandoffKey
) -> decode_pb2.SlabGrant | None:
    request = decode_pb2.ReserveRequest()
    request.CopyFrom(real.reserve)
    request.handoff.CopyFrom(key)
    answers = await step.send("Reserve", request, spoil=0.2)
    if not answers:
        return None
    answer = decode_pb2.ReserveResponse.FromString(answers[0])
    return answer.grant if answer.HasField("grant") else None


class _Steps:
    """The calls of one handoff, and the worst that they led to."""

    def __init__(self, rng: Random, channel: grpc.aio.Channel) -> None:
        self._rng = rng
        self._channel = channel
        self._outcomes: list[Outcome] = []

    async def send(
        self,
        method: str,
        message: decode_pb2.ReserveRequest
        | decode_pb2.CommitRequest
        | decode_pb2.DecodeRequest
        | decode_pb2.AbortRequest,
        *,
        spoil: float,
        leave_after: int = -1,
    ) -> list[bytes]:
        """Sends a request that is spoiled with a probability; the answers."""
        rng = self._rng
        raw = message.SerializeToString()
        if rng.random() < spoil:
            if rng.random() < 0.7:
                for _ in range(rng.randrange(1, 3)):
                    tweak(rng, message)
                raw = message.SerializeToString()
            else:
                raw = damaged(rng, raw)
        code, details, answers = await call(
            self._channel, f"{_DECODE}/{method}", [raw], timeout_s=10.0, leave_after=leave_after
        )
        self._outcomes.append(judged(code, details))
        return answers

    async def push(self, real: Genuine, grant: decode_pb2.SlabGrant) -> None:
        """Sends the slab in frames, some of which may lie."""
        rng, image = self._rng, real.image
        frames, at = [], 0
        while at < len(image):
            size = rng.randrange(1, len(image) + 1)
            frames.append(_frame(grant, image[at : at + size], offset=at))
            at += size
        frames.append(_frame(grant, b"", kind=FrameKind.END))
        token = grant.token
        if rng.random() < 0.5:
            spoiled = rng.randrange(5)
            if spoiled == 0:
                token = rng.choice([b"", rng.randbytes(16), token[:-1]])
            elif spoiled == 1:
                del frames[rng.randrange(len(frames))]
            elif spoiled == 2:
                index = rng.randrange(len(frames))
                frames[index] = damaged(rng, frames[index])
            elif spoiled == 3:
                wild = rng.choice([2**40, 2**63, len(image), 1])
                frames.insert(0, _frame(grant, b"wild", offset=wild))
            else:
                rng.shuffle(frames)
        code, details, _ = await call(
            self._channel,
            _PUSH,
            frames,
            metadata=((TOKEN_KEY, token),),
            timeout_s=10.0,
            leave_after=rng.choice([-1, -1, -1, 0]),
        )
        self._outcomes.append(judged(code, details))

    def outcome(self) -> Outcome:
        """The first finding, or how the calls ended."""
        for found in self._outcomes:
            if found.finding:
                return found
        return Outcome(self._outcomes[-1].label)


def _frame(
    grant: decode_pb2.SlabGrant,
    payload: bytes,
    *,
    offset: int = 0,
    kind: FrameKind = FrameKind.DATA,
) -> bytes:
    return encode_frame(
        kind, slot=grant.slot, generation=grant.generation, offset=offset, payload=payload
    )
