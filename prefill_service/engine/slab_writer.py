"""Observers that bring a prompt's KV to its slab: at once, or beside the computation.

Shapes: N slots, R rows of positions, G KV heads, D head size.
"""

import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from prefill_service.engine.device_slab import DeviceSlab
from prefill_service.engine.observer import KvObserver
from prefill_service.engine.pace import Mark, mark_for
from prefill_service.engine.plan import PromptPlan
from prefill_service.engine.prompt_slab import PromptSlab
from prefill_service.engine.resident_writer import ResidentSlabWriter

_WAITING = 64
"""Blocks that may wait for their copy; then the engine waits, which bounds device memory."""


class SlabWriter(KvObserver, Protocol):
    """An observer of one prompt that is closed when the prompt is over, however it ends."""

    def finish(self) -> None:
        """Returns once everything that was told is in the slab; raises what a copy failed with."""

    def close(self) -> None:
        """Returns once nothing writes to the slab any more; what was not copied yet is dropped."""


class DirectSlabWriter:
    """Copies in the engine thread, where keys and values are on the host already.

    Args:
        slab: where everything goes.
        progressed: is told the prompt tokens that are done.
    """

    def __init__(self, slab: PromptSlab, *, progressed: Callable[[int], None]) -> None:
        self._slab = slab
        self._progressed = progressed
        slab.begin_writing()

    def settled(self, plan: PromptPlan) -> None:
        """See `KvObserver.settled`."""
        self._slab.settle(plan.slab)

    def kv_final(
        self, *, layer: int, first_slot: int, keys_NGD: Tensor, values_NGD: Tensor
    ) -> None:
        """See `KvObserver.kv_final`."""
        self._slab.write_kv(
            layer=layer, first_slot=first_slot, keys_NGD=keys_NGD, values_NGD=values_NGD
        )

    def positions_final(self, *, layout: int, positions_RN: Tensor) -> None:
        """See `KvObserver.positions_final`."""
        self._slab.write_positions(layout=layout, positions_RN=positions_RN)

    def progress(self, *, done_tokens: int) -> None:
        """See `KvObserver.progress`."""
        self._progressed(done_tokens)

    def finish(self) -> None:
        """Nothing is under way."""

    def close(self) -> None:
        """See `SlabWriter.close`: nothing is under way."""
        self._slab.end_writing()


class DeviceSlabWriter:
    """Copies from a CUDA device to a host slab in a thread and a stream of its own.

    The engine goes on enqueueing layers; a block is copied once the device has computed it.

    Args:
        slab: where everything goes.
        progressed: is told the prompt tokens that are enqueued.
        device: where keys and values are; a CPU works too, without streams.
    """

    def __init__(
        self, slab: PromptSlab, *, progressed: Callable[[int], None], device: torch.device
    ) -> None:
        self._device = device
        self._mark = mark_for(device)
        self._pieces: queue.Queue[_Piece | None] = queue.Queue(maxsize=_WAITING)
        self._error: Exception | None = None
        self._dropping = False
        self._thread = threading.Thread(target=self._copy, name="prefill-slab", daemon=True)
        self._thread.start()
        # Last, as it begins the writing: what fails before it has nobody to end it.
        self._direct = DirectSlabWriter(slab, progressed=progressed)

    def settled(self, plan: PromptPlan) -> None:
        """See `KvObserver.settled`."""
        self._put(lambda: self._direct.settled(plan))

    def kv_final(
        self, *, layer: int, first_slot: int, keys_NGD: Tensor, values_NGD: Tensor
    ) -> None:
        """See `KvObserver.kv_final`."""
        self._put(
            lambda: self._direct.kv_final(
                layer=layer, first_slot=first_slot, keys_NGD=keys_NGD, values_NGD=values_NGD
            )
        )

    def positions_final(self, *, layout: int, positions_RN: Tensor) -> None:
        """See `KvObserver.positions_final`."""
        self._put(lambda: self._direct.positions_final(layout=layout, positions_RN=positions_RN))

    def progress(self, *, done_tokens: int) -> None:
        """See `KvObserver.progress`."""
        self._direct.progress(done_tokens=done_tokens)

    def finish(self) -> None:
        """See `SlabWriter.finish`."""
        self._end()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """See `SlabWriter.close`; after `finish`, and a second time, it does nothing."""
        self._dropping = True
        self._end()
        self._direct.close()

    def _end(self) -> None:
        if self._thread.is_alive():
            self._pieces.put(None)
            self._thread.join()

    def _put(self, write: Callable[[], None]) -> None:
        self._pieces.put(_Piece(write, None if self._mark is None else self._mark()))

    @torch.inference_mode()
    def _copy(self) -> None:
        """The thread: pieces in order; after an error they are dropped, so that nobody blocks."""
        with self._own_stream():
            while (piece := self._pieces.get()) is not None:
                if self._dropping:
                    continue
                try:
                    piece.run()
                except Exception as error:  # noqa: BLE001  `finish` raises it in the engine thread
                    self._error = error
                    self._dropping = True

    def _own_stream(self) -> AbstractContextManager[object]:
        if self._device.type != "cuda":
            return nullcontext()
        return torch.cuda.stream(torch.cuda.Stream(self._device))  # type: ignore[no-untyped-call]


class _Piece:
    """One write, and the mark after which its tensors are computed."""

    def __init__(self, write: Callable[[], None], computed: Mark | None) -> None:
        self._write = write
        self._computed = computed

    def run(self) -> None:
        if self._computed is not None:
            self._computed.synchronize()
        self._write()


def slab_writer(
    slab: PromptSlab, *, progressed: Callable[[int], None], device: torch.device
) -> SlabWriter:
    """The one for a slab and a model on `device`."""
    if isinstance(slab, DeviceSlab):
        return ResidentSlabWriter(slab, progressed=progressed, device=device)
    if device.type == "cuda":
        return DeviceSlabWriter(slab, progressed=progressed, device=device)
    return DirectSlabWriter(slab, progressed=progressed)
