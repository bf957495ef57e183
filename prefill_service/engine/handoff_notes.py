"""Notes of one traced prompt: when its KV was computed, pushed, sealed and adopted.

The engine thread writes the computed blocks, the loop everything else; nothing is read before both
are done.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from prefill_service.engine.observer import KvObserver
from prefill_service.engine.plan import PromptPlan
from shared.kv.memory import KvBytes
from shared.model.current_device import computing_on
from shared.transport.base import Grant, KvSender, TransferStats
from shared.types.handoff_trace import MAX_ENTRIES, HandoffTrace, KvBlock, KvPush


class HandoffNotes:
    """Of one prompt, from the start of its computation; a resend starts when it is made."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._blocks: list[KvBlock] = []
        self._pushes: list[KvPush] = []
        self._left_out = 0
        self._computed_s = self._sealed_s = 0.0

    def begin(self) -> None:
        """The computation begins now."""
        self._began = time.monotonic()

    def computed(self, blocks: list[KvBlock], *, ended_at: float) -> None:
        """The computation was over at `ended_at`, on the monotonic clock."""
        self._computed_s = ended_at - self._began
        self._blocks = blocks[:MAX_ENTRIES]
        self._left_out += len(blocks) - len(self._blocks)

    def pushed(self, nbytes: int, *, started: float) -> None:
        """The transport took bytes that it was given at `started`, on the monotonic clock."""
        if len(self._pushes) == MAX_ENTRIES:
            self._left_out += 1
            return
        seconds = time.monotonic() - started
        self._pushes.append(KvPush(nbytes=nbytes, start_s=started - self._began, seconds=seconds))

    def sealed(self) -> None:
        """Every byte arrived."""
        self._sealed_s = time.monotonic() - self._began

    def adopted(self) -> HandoffTrace:
        """The decode worker took the cache over just now."""
        return HandoffTrace(
            computed=tuple(self._blocks),
            pushed=tuple(self._pushes),
            left_out=self._left_out,
            computed_s=self._computed_s,
            sealed_s=self._sealed_s,
            adopted_s=time.monotonic() - self._began,
        )


class TimedKv:
    """An observer around another one: notes when the device has computed each block.

    Args:
        inner: is told everything.
        notes: where to.
        device: of the model; on a CUDA device events in its stream mark the moments.
    """

    def __init__(self, inner: KvObserver, *, notes: HandoffNotes, device: torch.device) -> None:
        self._inner = inner
        self._notes = notes
        self._on_cuda = device.type == "cuda"
        self._blocks: list[KvBlock] = []
        self._marks: list[torch.cuda.Event] = []
        notes.begin()
        self._began = time.monotonic()
        with computing_on(device):
            self._mark()

    def settled(self, plan: PromptPlan) -> None:
        """See `KvObserver.settled`."""
        self._inner.settled(plan)

    def kv_final(
        self, *, layer: int, first_slot: int, keys_NGD: Tensor, values_NGD: Tensor
    ) -> None:
        """Notes a block."""
        self._mark()
        self._blocks.append(
            KvBlock(
                layer=layer,
                first_slot=first_slot,
                slots=keys_NGD.shape[0],
                seconds=time.monotonic() - self._began,
            )
        )
        self._inner.kv_final(
            layer=layer, first_slot=first_slot, keys_NGD=keys_NGD, values_NGD=values_NGD
        )

    def positions_final(self, *, layout: int, positions_RN: Tensor) -> None:
        """See `KvObserver.positions_final`."""
        self._inner.positions_final(layout=layout, positions_RN=positions_RN)

    def progress(self, *, done_tokens: int) -> None:
        """See `KvObserver.progress`."""
        self._inner.progress(done_tokens=done_tokens)

    def finish(self, *, ended_at: float) -> None:
        """The computation was over at `ended_at`, on a CUDA device too."""
        blocks = [self._at(index) for index in range(len(self._blocks))]
        self._notes.computed(blocks, ended_at=ended_at)

    def _mark(self) -> None:
        if self._on_cuda:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._marks.append(event)

    def _at(self, index: int) -> KvBlock:
        """A block with the moment of the device that computed it."""
        block = self._blocks[index]
        if not self._on_cuda:
            return block
        milliseconds = self._marks[0].elapsed_time(self._marks[index + 1])
        return replace(block, seconds=float(milliseconds) / 1e3)


class NotedSender:
    """A sender around another one: notes what goes through it.

    Args:
        inner: sends.
        notes: where to.
    """

    def __init__(self, inner: KvSender, notes: HandoffNotes) -> None:
        self._inner = inner
        self._notes = notes

    @property
    def takes_sums(self) -> bool:
        """See `KvSender.takes_sums`."""
        return self._inner.takes_sums

    async def open(self, *, address: str, grant: Grant) -> None:
        """See `KvSender.open`."""
        await self._inner.open(address=address, grant=grant)

    async def write(self, offset: int, data: KvBytes) -> None:
        """See `KvSender.write`."""
        started = time.monotonic()
        await self._inner.write(offset, data)
        nbytes = len(data) if isinstance(data, bytes) else data.nbytes
        self._notes.pushed(nbytes, started=started)

    async def seal(self, *, sums: Sequence[int] = ()) -> TransferStats:
        """See `KvSender.seal`."""
        stats = await self._inner.seal(sums=sums)
        self._notes.sealed()
        return stats

    async def abort(self) -> None:
        """See `KvSender.abort`."""
        await self._inner.abort()
