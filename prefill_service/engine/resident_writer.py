"""The observer of a prompt whose slab is on the device that computes it.

Each block's copy is enqueued behind the layer that made it. One thread waits for the device, event
by event, and publishes what is final: neither the engine nor the loop waits for a block. It begins
with the first block, when the device has work, and ends with the last one.
Shapes: N slots, R rows of positions, G KV heads, D head size.
"""

import queue
import threading
from collections.abc import Callable

import torch
from torch import Tensor

from prefill_service.engine.device_slab import DeviceSlab
from prefill_service.engine.pace import Mark, mark_for
from prefill_service.engine.plan import PromptPlan


class ResidentSlabWriter:
    """A `SlabWriter`.

    Args:
        slab: where everything goes.
        progressed: is told the prompt tokens that are enqueued.
        device: of the slab; a CPU works too, without events.
    """

    def __init__(
        self, slab: DeviceSlab, *, progressed: Callable[[int], None], device: torch.device
    ) -> None:
        self._slab = slab
        self._progressed = progressed
        self._mark = mark_for(device)
        self._events: queue.SimpleQueue[tuple[Mark | None, Callable[[], None]] | None] = (
            queue.SimpleQueue()
        )
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        slab.begin_writing()  # last: what fails before it has nobody to end the writing

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
        self._enqueued()

    def positions_final(self, *, layout: int, positions_RN: Tensor) -> None:
        """See `KvObserver.positions_final`."""
        self._slab.write_positions(layout=layout, positions_RN=positions_RN)
        self._enqueued()

    def progress(self, *, done_tokens: int) -> None:
        """See `KvObserver.progress`."""
        self._progressed(done_tokens)

    def finish(self) -> None:
        """See `SlabWriter.finish`."""
        self._end()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """See `SlabWriter.close`; what is enqueued is waited for, as the memory is lent on."""
        if self._thread is None or self._thread.is_alive():
            self._after_this(lambda: None)
            self._end()
        self._slab.end_writing()

    def _enqueued(self) -> None:
        ranges = self._slab.take_written()
        self._after_this(lambda: self._slab.publish(ranges))
        if self._slab.sum_up():
            # Nothing follows: the push can end while the first token is still computed.
            self._after_this(self._slab.summed)
            self._events.put(None)

    def _after_this(self, tell: Callable[[], None]) -> None:
        """Has the thread, which begins here, call `tell` when all that is enqueued was computed."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._publish, name="prefill-slab", daemon=True)
            self._thread.start()
        self._events.put((None if self._mark is None else self._mark(), tell))

    def _end(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            self._events.put(None)
            self._thread.join()

    def _publish(self) -> None:
        """The thread: events in order; after an error the rest is only waited for."""
        while (event := self._events.get()) is not None:
            mark, tell = event
            try:
                if mark is not None:
                    mark.synchronize()
                if self._error is None:
                    tell()
            except Exception as error:  # noqa: BLE001  `finish` raises it in the engine thread
                self._error = error
