"""One prompt's part in a pass: its scores and choices, and the KV that it gives to its observer.

Whatever goes wrong here is this prompt's alone: it ends, and the others of the pass go on.

Shapes: L prompt tokens, N slots or kept tokens, R rows of positions, G KV heads, D head size.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from prefill_service.engine.layer_steps import BlockSink, LayerKv, LayerRun, drop_block
from prefill_service.engine.observer import KvObserver
from prefill_service.engine.plan import PromptPlan
from prefill_service.engine.selection import PromptSelection, gathered
from prefill_service.engine.stopwatch import stopwatch_for
from shared.errors import CancelledError, TandemError
from shared.kv.slab_layout import SlabLayout
from shared.types.kv_manifest import PositionKind


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedPrompt:
    """A prompt to compute, alone or with others; all calls come in the thread of the pass."""

    token_ids: Sequence[int]
    """The prompt."""
    plan: PromptPlan
    """What was decided about it."""
    observer: KvObserver
    """Is told what becomes final."""
    stop: Callable[[], bool]
    """Asked before every block of a layer; once true, the prompt ends."""


class PromptPass:
    """The state of one prompt on its way through the layers.

    Args:
        prompt: the prompt.
        device: where the model is.
        by_kernel: score, choose and gather by Triton kernels.
    """

    def __init__(self, prompt: PackedPrompt, *, device: torch.device, by_kernel: bool) -> None:
        plan = prompt.plan
        self.error: Exception | None = None
        self.selection = PromptSelection(
            plan, device=device, by_kernel=by_kernel, stopwatch=stopwatch_for(device)
        )
        self._plan = plan
        self._device = device
        self._positions_N: Tensor | None = None
        self._observer = prompt.observer
        self._stop = prompt.stop
        self._by_kernel = by_kernel
        self._slab: SlabLayout = plan.slab
        self._announced: set[int] = set()
        self._awaiting_kept: dict[int, LayerKv] = {}

    @property
    def prompt_tokens(self) -> int:
        """L."""
        return self._plan.prompt_tokens

    @property
    def tokens_onward(self) -> int:
        """N, the tokens that go through the next layer."""
        return self.prompt_tokens if self._positions_N is None else self._positions_N.shape[0]

    @property
    def positions_N(self) -> Tensor:
        """Their positions, int64, ascending; made when first asked for, with the layers ahead."""
        if self._positions_N is None:
            self._positions_N = torch.arange(self.prompt_tokens, device=self._device)
        return self._positions_N

    @property
    def ended(self) -> bool:
        """Whether it failed or was stopped, and nothing more is to be done for it."""
        return self.error is not None

    def prunes_at(self, index: int) -> bool:
        """Whether some of its tokens go no further than this layer."""
        return self._plan.summary.pruned and index == self._plan.params.pruning_layer

    @contextmanager
    def part(self) -> Iterator[None]:
        """Bounds what is done for this prompt alone: an error ends the prompt and goes no further.

        An ended prompt must not be worked on.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001  the other prompts of the pass must not suffer
            self.end(error)

    def end(self, error: Exception) -> None:
        """Ends the prompt."""
        # The frames of a traceback hold tensors, in a circle with this prompt; an end that was
        # foreseen does without.
        self.error = error.with_traceback(None) if isinstance(error, TandemError) else error
        self._awaiting_kept.clear()

    def look(self) -> None:
        """Ends the prompt if its caller wants that."""
        with self.part():
            if self._stop():
                raise CancelledError(
                    f"the prefill of {self.prompt_tokens} tokens was stopped: its request was "
                    "cancelled or its caller went away; nothing is left to do"
                )

    def progress(self, layers_done: int, *, num_layers: int) -> None:
        """Tells the observer how far it is."""
        with self.part():
            self._observer.progress(done_tokens=self.prompt_tokens * layers_done // num_layers)

    def sink(self, index: int) -> BlockSink:
        """Where a layer's blocks go: to the observer, or nowhere if a selection leaves later."""
        if index in self._plan.held_layers or index in self._plan.trimmed_layers:
            return drop_block

        def emit(first_slot: int, k_BGD: Tensor, v_BGD: Tensor) -> None:
            if self.ended:
                return
            with self.part():
                self._emit(
                    index, k_BGD, v_BGD, first_slot=first_slot, positions_RN=self.positions_N[None]
                )

        return emit

    def ran(self, index: int, ran: LayerRun) -> None:
        """Takes what a layer left that ran on every row of the prompt."""
        if index in self._plan.trimmed_layers:
            self._trim(index, ran)
        else:
            self._settle(index, ran)

    def choose(self, index: int, ran: LayerRun) -> Tensor:
        """Takes what the pruning layer left; positions [N] of the tokens that go on, ascending."""
        self._settle(index, ran)
        chosen_N = self.selection.kept()
        if self.selection.plan is not self._plan:
            self._plan = self.selection.plan
            self._slab = self._plan.slab
            self._observer.settled(self._plan)
        self._release_awaiting()
        if chosen_N is not None:
            self._positions_N = chosen_N
        return self.positions_N

    def _settle(self, index: int, ran: LayerRun) -> None:
        """Scores a layer; sends its own choice, or keeps it until the pruning layer has chosen."""
        own_RN = self.selection.observe(index, ran)
        if index not in self._plan.held_layers:
            return
        if own_RN is None:
            self._awaiting_kept[index] = ran.kv
        else:
            keys_NGD, values_NGD = self._gathered(ran.kv, own_RN)
            self._emit(index, keys_NGD, values_NGD, first_slot=0, positions_RN=own_RN)

    def _trim(self, index: int, ran: LayerRun) -> None:
        """Sends what the cache of a layer after the pruning layer keeps of the kept tokens."""
        slots_RN = self.selection.trimmed(index, ran)
        keys_NGD, values_NGD = self._gathered(ran.kv, slots_RN)
        self._emit(
            index, keys_NGD, values_NGD, first_slot=0, positions_RN=self.positions_N[slots_RN]
        )

    def _release_awaiting(self) -> None:
        for index in sorted(self._awaiting_kept):
            own_RN = self.selection.late_choice(index)
            positions_RN = self.selection.shared() if own_RN is None else own_RN
            keys_NGD, values_NGD = self._gathered(self._awaiting_kept.pop(index), positions_RN)
            self._emit(index, keys_NGD, values_NGD, first_slot=0, positions_RN=positions_RN)

    def _gathered(self, kv: LayerKv, positions_RN: Tensor) -> tuple[Tensor, Tensor]:
        return gathered(kv, positions_RN, by_kernel=self._by_kernel)

    def _emit(
        self,
        index: int,
        keys_NGD: Tensor,
        values_NGD: Tensor,
        *,
        first_slot: int,
        positions_RN: Tensor,
    ) -> None:
        layout = self._slab.layer_layouts[index]
        is_identity = self._slab.layouts[layout].kind is PositionKind.IDENTITY
        if not is_identity and layout not in self._announced:
            self._announced.add(layout)
            self._observer.positions_final(
                layout=layout, positions_RN=positions_RN.to(torch.int32).contiguous()
            )
        self._observer.kv_final(
            layer=index, first_slot=first_slot, keys_NGD=keys_NGD, values_NGD=values_NGD
        )
