"""A prefill worker made by hand: dense KV of a tiny model, pushed over the real transport.

It speaks to a real decode server and can misbehave on request. The KV comes from the slow prefill
of the references, pruned to random positions where a layout asks for it.
"""

import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import grpc.aio
import torch

from protos.tandem.v1 import decode_pb2, decode_pb2_grpc
from shared.kv.slab_layout import SlabLayout
from shared.model.transformer import Transformer
from shared.rpc.channel import open_channel
from shared.transport.base import Grant, KvSender, TransportContext
from shared.transport.grpc_stream import GrpcTransport
from shared.types.handoff import HandoffKey
from shared.types.kv_manifest import KvManifest, PruningSummary, SegmentKind
from shared.types.methods import Aggregation, KvSelect
from shared.types.model_identity import ModelIdentity
from shared.types.options import RequestOptions
from shared.types.sampling import SampledToken, SamplingParams, StopConditions
from shared.types.token_ids import hash_ids
from shared.wire.identity import handoff_to_pb, identity_to_pb
from shared.wire.manifest import manifest_to_pb, pruning_to_pb
from shared.wire.options import options_to_pb
from shared.wire.sampling import sampling_to_pb, stop_to_pb
from tests.reference.delta_slow import SlowPrompt
from tests.support.decode_rows import LP, WHOLE, layouts_of, make_prompt

GREEDY = SamplingParams(temperature=0.0)
SELECTS = {"identity": KvSelect.SHARED, "shared": KvSelect.SHARED}
SELECTS |= {"layer": KvSelect.LAYER, "head": KvSelect.HEAD}


@dataclass(frozen=True)
class Prepared:
    """A prompt ready to be pushed."""

    ids: list[int]
    """Prompt tokens."""
    prompt: SlowPrompt
    """Its KV."""
    plan: SlabLayout
    """Where it goes."""
    image: bytes
    """The slab's bytes."""
    manifest: KvManifest
    """What is promised; the handoff's name is filled in at the commit."""
    first_token: int
    """Any token will do; this one is drawn from the prompt."""

    @property
    def pruned(self) -> bool:
        """Whether later layers keep fewer tokens."""
        return self.manifest.pruning.pruned


def prepare(
    model: Transformer, *, mode: str = "shared", tokens: int = 60, kept: int = 30, seed: int = 0
) -> Prepared:
    """Runs the prompt, lays its KV out and describes it; modes as in `make_prompt`."""
    prompt, ids = make_prompt(model, mode=mode, tokens=tokens, kept=kept, seed=seed)
    pruned = mode != "identity"
    plan = SlabLayout.plan(
        model.geometry(),
        prompt_tokens=tokens,
        kept_tokens=kept if pruned else tokens,
        whole_layers=WHOLE,
        pruning_layer=LP,
        kv_select=SELECTS[mode],
        pruned=pruned,
    )
    image = _image(prompt, plan)
    segments = tuple(
        replace(s, crc32=zlib.crc32(image[s.offset : s.offset + s.length])) for s in plan.segments
    )
    manifest = KvManifest(
        handoff=HandoffKey("unnamed"),
        model=model.identity("tiny"),
        prompt_tokens=tokens,
        next_position=tokens,
        prompt_hash=hash_ids(ids),
        pruning=PruningSummary(
            pruned=pruned,
            reason="profile" if pruned else "mode_full",
            pruning_layer=LP,
            aggregation_window=2,
            deferred_layers=WHOLE,
            observation_window=4,
            aggregation=Aggregation.RANK_MAX,
            kv_select=SELECTS[mode],
            keep_rate=0.5,
            kept_tokens=kept if pruned else tokens,
        ),
        layouts=plan.layouts,
        layer_layouts=plan.layer_layouts,
        segments=segments,
        first_tokens=(SampledToken(token_id=ids[0]),),
    )
    return Prepared(ids, prompt, plan, image, manifest, ids[0])


def _image(prompt: SlowPrompt, plan: SlabLayout) -> bytes:
    layouts, layer_layouts = layouts_of(prompt)
    assert layer_layouts == plan.layer_layouts
    image = bytearray(plan.total_bytes)
    for segment in plan.segments:
        if segment.kind is SegmentKind.KV:
            pair = (prompt.keys[segment.index], prompt.values[segment.index])
            raw = torch.stack(pair).contiguous().numpy().tobytes()
        else:
            positions = layouts[segment.index].positions_RN
            assert positions is not None
            raw = positions.to(torch.int32).numpy().tobytes()
        assert len(raw) == segment.length
        image[segment.offset : segment.offset + segment.length] = raw
    return bytes(image)


def with_positions(prepared: Prepared, positions: list[int]) -> Prepared:
    """The same with other positions in its shared layout, checksums and all."""
    (place,) = [s for s in prepared.plan.segments if s.kind is SegmentKind.POSITIONS]
    raw = torch.tensor(positions, dtype=torch.int32).numpy().tobytes()
    assert len(raw) == place.length
    image = prepared.image[: place.offset] + raw + prepared.image[place.offset + place.length :]
    segments = tuple(
        replace(s, crc32=zlib.crc32(raw)) if s.kind is SegmentKind.POSITIONS else s
        for s in prepared.manifest.segments
    )
    return replace(prepared, image=image, manifest=replace(prepared.manifest, segments=segments))


@dataclass
class Faults:
    """How a push misbehaves."""

    flip_byte: int | None = None
    """Position in the slab of a byte that arrives damaged."""
    generation_shift: int = 0
    """Added to the granted generation."""
    slot_shift: int = 0
    """Added to the granted slot."""
    truncate: int | None = None
    """Bytes after which the push ends, with its seal."""


@dataclass
class Decoded:
    """One generation as its client saw it."""

    accepted: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    finished: list[decode_pb2.DecodeFinished] = field(default_factory=list)

    @property
    def end(self) -> decode_pb2.DecodeFinished:
        """The one ending."""
        (end,) = self.finished
        return end


class PrefillPeer:
    """Speaks to one decode server.

    Args:
        identity: the model that it claims to run.
        address: the server.
    """

    def __init__(self, identity: ModelIdentity, address: str) -> None:
        self.identity = identity
        self.address = address
        self.announces = False
        """Whether its reservations say how the prompt will be pruned."""
        self.channel: grpc.aio.Channel = open_channel(address)
        self.stub = decode_pb2_grpc.DecodeServiceStub(self.channel)
        self.transport = GrpcTransport(
            TransportContext(model=self.identity, incarnation="prefill-peer")
        )

    async def close(self) -> None:
        """Drops the connections."""
        await self.transport.close()
        await self.channel.close()

    def reserve_request(
        self, key: HandoffKey, prepared: Prepared, *, max_new_tokens: int = 16, branches: int = 1
    ) -> decode_pb2.ReserveRequest:
        """What a prefill worker would ask; with the pruning where the peer announces it."""
        return decode_pb2.ReserveRequest(
            handoff=handoff_to_pb(key),
            model=identity_to_pb(self.identity),
            prompt_tokens=len(prepared.ids),
            kept_tokens=prepared.manifest.pruning.kept_tokens,
            whole_layers=WHOLE if prepared.pruned else self.identity.num_layers,
            slab_bytes=prepared.plan.total_bytes,
            max_new_tokens=max_new_tokens,
            num_branches=branches,
            pruning=pruning_to_pb(prepared.manifest.pruning) if self.announces else None,
        )

    async def reserve(
        self, key: HandoffKey, prepared: Prepared, *, max_new_tokens: int = 16, branches: int = 1
    ) -> Grant:
        """A grant; the test fails when the worker is busy."""
        answer = await self.stub.Reserve(
            self.reserve_request(key, prepared, max_new_tokens=max_new_tokens, branches=branches)
        )
        assert answer.WhichOneof("result") == "grant", answer
        return Grant(
            slot=answer.grant.slot,
            generation=answer.grant.generation,
            lease_ms=answer.grant.lease_ms,
            transports=tuple(answer.grant.transports),
            incarnation=answer.grant.incarnation,
            token=answer.grant.token,
        )

    async def open(self, grant: Grant) -> KvSender:
        """An open push stream."""
        sender = self.transport.sender()
        await sender.open(address=self.address, grant=grant)
        return sender

    async def push(self, grant: Grant, prepared: Prepared, faults: Faults | None = None) -> None:
        """Pushes the slab, in pieces, and seals it unless told otherwise."""
        faults = faults if faults is not None else Faults()
        image = bytearray(prepared.image)
        if faults.flip_byte is not None:
            image[faults.flip_byte] ^= 0xFF
        sender = await self.open(
            replace(
                grant,
                slot=grant.slot + faults.slot_shift,
                generation=grant.generation + faults.generation_shift,
            )
        )
        end = len(image) if faults.truncate is None else faults.truncate
        half = end // 2
        try:
            await sender.write(0, bytes(image[:half]))
            await sender.write(half, bytes(image[half:end]))
            await sender.seal()
        finally:
            await sender.abort()

    async def commit(
        self,
        key: HandoffKey,
        grant: Grant,
        prepared: Prepared,
        *,
        manifest: KvManifest | None = None,
        prompt_ids: list[int] | None = None,
    ) -> decode_pb2.CommitResponse:
        """Commits; the answer may be a refusal."""
        promised = manifest if manifest is not None else self.manifest(prepared)
        return await self.stub.Commit(
            decode_pb2.CommitRequest(
                manifest=manifest_to_pb(replace(promised, handoff=key)),
                slot=grant.slot,
                generation=grant.generation,
                prompt_token_ids=prepared.ids if prompt_ids is None else prompt_ids,
                token=grant.token,
            )
        )

    def manifest(self, prepared: Prepared, **changes: object) -> KvManifest:
        """What this peer promises of a prompt, with changes for refusals."""
        return replace(prepared.manifest, **({"model": self.identity} | changes))  # type: ignore[arg-type]

    async def hand_over(
        self, key: HandoffKey, prepared: Prepared, *, max_new_tokens: int = 16, branches: int = 1
    ) -> decode_pb2.Adopted:
        """Reserve, push, commit."""
        grant = await self.reserve(key, prepared, max_new_tokens=max_new_tokens, branches=branches)
        await self.push(grant, prepared)
        firsts = prepared.manifest.first_tokens * branches
        manifest = self.manifest(prepared, first_tokens=firsts)
        answer = await self.commit(key, grant, prepared, manifest=manifest)
        assert answer.WhichOneof("result") == "adopted", answer
        return answer.adopted

    async def abort(self, key: HandoffKey) -> bool:
        """Ends a handoff; whether it is drained."""
        request = decode_pb2.AbortRequest(handoff=handoff_to_pb(key), reason="test")
        return (await self.stub.Abort(request)).drained

    async def cancel(self, key: HandoffKey) -> bool:
        """Ends a generation; whether there was something to end."""
        request = decode_pb2.DecodeServiceCancelRequest(handoff=handoff_to_pb(key))
        return (await self.stub.Cancel(request)).cancelled

    def decode_request(
        self,
        key: HandoffKey,
        prepared: Prepared,
        *,
        sampling: SamplingParams = GREEDY,
        stop: StopConditions | None = None,
        options: RequestOptions | None = None,
        deadline_ms: int = 0,
        branch: int = 0,
        first_token: int | None = None,
    ) -> decode_pb2.DecodeRequest:
        """A Decode call from the prepared first token."""
        return decode_pb2.DecodeRequest(
            handoff=handoff_to_pb(key),
            branch=branch,
            first_token=prepared.first_token if first_token is None else first_token,
            sampling=sampling_to_pb(sampling),
            stop=stop_to_pb(stop if stop is not None else StopConditions(max_tokens=16)),
            options=options_to_pb(options if options is not None else RequestOptions()),
            deadline_ms=deadline_ms,
        )

    async def decode(self, request: decode_pb2.DecodeRequest) -> Decoded:
        """Reads a generation to its end."""
        seen = Decoded()
        async for response in self.stub.Decode(request):
            event = response.WhichOneof("event")
            assert not seen.finished, "nothing follows the ending"
            if event == "accepted":
                assert not seen.tokens
                seen.accepted.append(response.accepted.worker_id)
            elif event == "tokens":
                assert response.tokens.tokens, "an empty batch is never sent"
                for token in response.tokens.tokens:
                    seen.tokens.append(token.token_id)
                    seen.logprobs.append(token.logprob if token.HasField("logprob") else None)
            else:
                seen.finished.append(response.finished)
        return seen


@asynccontextmanager
async def prefill_peer(identity: ModelIdentity, address: str) -> AsyncIterator[PrefillPeer]:
    """A peer that closes itself."""
    peer = PrefillPeer(identity, address)
    try:
        yield peer
    finally:
        await peer.close()
