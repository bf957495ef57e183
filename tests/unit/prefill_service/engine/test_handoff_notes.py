"""What a traced prompt notes of its way: blocks by layer, pushes, the end; bounded."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch

from prefill_service.engine.capture import CapturedKv
from prefill_service.engine.handoff_notes import HandoffNotes, NotedSender, TimedKv
from prefill_service.engine.plan import plan_prompt
from prefill_service.engine.runner import PrefillRunner
from shared.errors import TransportError
from shared.kv.memory import KvBytes, MemoryPart
from shared.model.attention import TorchAttention
from shared.model.transformer import Transformer
from shared.transport.base import Grant, TransferStats
from shared.types.handoff_trace import MAX_ENTRIES, KvBlock
from shared.types.methods import PruningParams
from shared.types.options import RequestOptions

CPU = torch.device("cpu")
TOKENS = 150
PARAMS = PruningParams(pruning_layer=3, deferred_layers=2, keep_rate=0.25)


def test_blocks_come_in_order_and_cover_every_slot(tiny_model: Transformer) -> None:
    plan = plan_prompt(
        config=tiny_model.config,
        geometry=tiny_model.geometry(),
        params=PARAMS,
        options=RequestOptions(),
        prompt_tokens=TOKENS,
    )
    notes, captured = HandoffNotes(), CapturedKv(plan)
    observer = TimedKv(captured, notes=notes, device=CPU)
    runner = PrefillRunner(tiny_model, attention=TorchAttention(), chunk_tokens=64)
    ids = [3 + n % 500 for n in range(TOKENS)]
    runner.run(token_ids=ids, plan=plan, observer=observer, stop=lambda: False)
    observer.finish(ended_at=time.monotonic())
    trace = notes.adopted()
    moments = [block.seconds for block in trace.computed]
    assert moments == sorted(moments)
    assert 0 < moments[0] <= moments[-1] <= trace.computed_s <= trace.adopted_s
    for layer in range(tiny_model.config.num_layers):
        blocks = [block for block in trace.computed if block.layer == layer]
        keys, _ = captured.layer(layer)
        assert sum(block.slots for block in blocks) == keys.shape[0]
        assert blocks[0].first_slot == 0
    assert len([b for b in trace.computed if b.layer == 0]) == 3, "a block for each chunk"
    assert captured.layer_positions(5).shape[-1] < TOKENS, "the observer inside hears everything"


@dataclass
class Sink:
    """A sender without a wire; `fails` breaks its next write."""

    taken: list[bytes] = field(default_factory=list)
    fails: bool = False
    aborted: bool = False

    takes_sums: bool = False

    async def open(self, *, address: str, grant: Grant) -> None:
        assert address == "h:1"
        assert grant.slot == 2

    async def write(self, offset: int, data: KvBytes) -> None:
        if self.fails:
            raise TransportError("broken")
        assert not isinstance(data, MemoryPart)
        self.taken.append(bytes(data))

    async def seal(self, *, sums: Sequence[int] = ()) -> TransferStats:
        assert not sums
        return TransferStats(bytes=sum(map(len, self.taken)), seconds=1.0)

    async def abort(self) -> None:
        self.aborted = True


async def test_pushes_and_the_seal_are_noted() -> None:
    notes, sink = HandoffNotes(), Sink()
    sender = NotedSender(sink, notes)
    await sender.open(address="h:1", grant=Grant(slot=2, generation=1))
    await sender.write(0, b"four")
    await sender.write(4, memoryview(bytearray(8)))
    assert (await sender.seal()).bytes == 12
    trace = notes.adopted()
    assert [push.nbytes for push in trace.pushed] == [4, 8]
    assert 0 <= trace.pushed[0].start_s <= trace.pushed[1].start_s
    assert trace.pushed[1].start_s <= trace.sealed_s <= trace.adopted_s
    assert trace.computed == ()
    assert trace.computed_s == 0.0, "nothing was computed: it was sent again"


async def test_what_fails_is_not_noted_and_aborts_go_through() -> None:
    notes, sink = HandoffNotes(), Sink(fails=True)
    sender = NotedSender(sink, notes)
    with pytest.raises(TransportError):
        await sender.write(0, b"x")
    await sender.abort()
    assert sink.aborted
    assert notes.adopted().pushed == ()


def test_notes_are_bounded() -> None:
    notes = HandoffNotes()
    block = KvBlock(layer=0, first_slot=0, slots=1, seconds=0.0)
    notes.computed([block] * (MAX_ENTRIES + 3), ended_at=time.monotonic())
    for _ in range(MAX_ENTRIES + 2):
        notes.pushed(1, started=time.monotonic())
    trace = notes.adopted()
    assert (len(trace.computed), len(trace.pushed)) == (MAX_ENTRIES, MAX_ENTRIES)
    assert trace.left_out == 5
