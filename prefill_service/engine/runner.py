"""The forward pass of one prompt: exact CLAA prefill in two phases, with its exact shortcuts.

Layers before the pruning layer lp run on every token. At lp every token gets keys and values, but
only the chosen ones get queries, attention and MLP; the layers after it run on those at their
original positions. The last layer computes one row, the only one whose logits are needed. Tokens go
through a layer in blocks and layers follow one another, so that a layer's whole KV exists only
while it is scored, and the unpruned layers leave block by block.

Shapes: T tokens of the running sequence, N kept tokens or slots, R rows of positions, E hidden
width, G KV heads, D head size, V vocabulary.
"""

import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from prefill_service.engine.layer_steps import (
    LayerKv,
    LayerRun,
    LayerSteps,
    PromptSteps,
    drop_block,
)
from prefill_service.engine.pace import Pace, mark_for
from prefill_service.engine.plan import PromptPlan
from prefill_service.engine.selection import PromptSelection, gathered
from prefill_service.engine.stopwatch import stopwatch_for
from shared.errors import CancelledError, ConfigError, InvalidRequestError
from shared.kv.slab_layout import SlabLayout
from shared.model.attention import PrefillAttention
from shared.model.current_device import computing_on
from shared.model.device_attention import DeviceAttention
from shared.model.transformer import Transformer
from shared.types.kv_manifest import PositionKind

DEFAULT_CHUNK_TOKENS = 1024
"""Tokens of a block unless configured."""


class KvObserver(Protocol):
    """Is told what a prompt leaves behind, in the thread that runs it, in this order.

    Tensors are contiguous, on the model's device, and never written again: they may be kept.
    """

    def settled(self, plan: PromptPlan) -> None:
        """The plan as it ends: once, before the first choice, where a mass sets its count."""

    def kv_final(
        self, *, layer: int, first_slot: int, keys_NGD: Tensor, values_NGD: Tensor
    ) -> None:
        """Slots `first_slot`.. of a layer are final; a layer's blocks come in order of slots."""

    def positions_final(self, *, layout: int, positions_RN: Tensor) -> None:
        """The positions of a layout (int32), once, before the first KV that uses it."""

    def progress(self, *, done_tokens: int) -> None:
        """The share of the work that is done, in prompt tokens; called after every layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillOutput:
    """What a prompt's prefill gives beside its KV."""

    plan: PromptPlan
    """What was done: the plan that it ran by, with the count that a mass came to."""
    logits_V: Tensor
    """Float32 logits of the token after the prompt."""
    kept_N: Tensor
    """Positions that ran past the pruning layer, int64, ascending."""
    scores_C: Tensor | None
    """The scores that chose them, of the tokens before the window; None when nothing was ranked."""
    select_seconds: float
    """Time for scoring and selecting."""
    prefill_seconds: float
    """Time in all, the observer's included."""


class PrefillRunner:
    """Runs prompts, any number at a time from different threads; holds nothing about them.

    Args:
        model: the decoder.
        attention: its attention backend; with that of a CUDA device, our kernels run around it.
        chunk_tokens: tokens that go through a layer together; bounds activations, not results.

    Raises:
        ConfigError: chunk_tokens is not positive.
    """

    def __init__(
        self,
        model: Transformer,
        *,
        attention: PrefillAttention,
        chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
    ) -> None:
        if chunk_tokens < 1:
            raise ConfigError(f"chunk_tokens is {chunk_tokens}: a block holds at least 1 token")
        self._model = model
        self._attention = attention
        self._chunk_tokens = chunk_tokens

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self._model.device

    @torch.inference_mode()
    def run(
        self,
        *,
        token_ids: Sequence[int],
        plan: PromptPlan,
        observer: KvObserver,
        stop: Callable[[], bool],
    ) -> PrefillOutput:
        """Runs a prompt as planned, telling `observer` what becomes final.

        Raises:
            InvalidRequestError: a token id is outside the vocabulary.
            CancelledError: `stop` turned true; seen before every block of a layer.
        """
        assert len(token_ids) == plan.prompt_tokens, "the plan is of another prompt"
        ids_T = checked_ids(token_ids, self._model)
        with computing_on(self._model.device):
            return self._run(ids_T, plan=plan, observer=observer, stop=stop)

    def _run(
        self, ids_T: Tensor, *, plan: PromptPlan, observer: KvObserver, stop: Callable[[], bool]
    ) -> PrefillOutput:
        started = time.perf_counter()
        steps = self._steps(lambda: _raise_if_stopped(stop, prompt_tokens=plan.prompt_tokens))
        run = _PromptRun(self._model, plan=plan, steps=steps, observer=observer)
        logits_V = run.forward(ids_T)
        if logits_V.is_cuda:
            torch.cuda.synchronize(logits_V.device)  # until here nothing waited for the device
        return PrefillOutput(
            plan=run.selection.plan,
            logits_V=logits_V,
            kept_N=run.positions_T,
            scores_C=run.selection.scores_C,
            select_seconds=run.selection.seconds,
            prefill_seconds=time.perf_counter() - started,
        )

    def _steps(self, check: Callable[[], None]) -> PromptSteps:
        """How layers are run, by what the attention is."""
        config = self._model.config
        if isinstance(self._attention, DeviceAttention):
            from prefill_service.engine.fused_steps import (  # noqa: PLC0415  Triton is optional
                FusedLayerSteps,
            )

            return FusedLayerSteps(
                attention=self._attention,
                config=config,
                chunk_tokens=self._chunk_tokens,
                check=check,
            )
        return LayerSteps(
            attention=self._attention,
            config=config,
            chunk_tokens=self._chunk_tokens,
            check=check,
        )


class _PromptRun:
    """The state of one prompt on its way through the layers."""

    def __init__(
        self, model: Transformer, *, plan: PromptPlan, steps: PromptSteps, observer: KvObserver
    ) -> None:
        self._model = model
        self._plan = plan
        self._steps = steps
        self._observer = observer
        self._slab: SlabLayout = plan.slab
        self._announced: set[int] = set()
        self._awaiting_kept: dict[int, LayerKv] = {}
        self._pace = Pace(plan.prompt_tokens, mark=mark_for(model.device))
        self._by_kernel = isinstance(steps.attention, DeviceAttention)
        self.selection = PromptSelection(
            plan,
            device=model.device,
            by_kernel=self._by_kernel,
            stopwatch=stopwatch_for(model.device),
        )
        self.positions_T = torch.arange(plan.prompt_tokens, device=model.device)
        self._rope = model.rope(self.positions_T, context_tokens=plan.prompt_tokens)

    def forward(self, ids_T: Tensor) -> Tensor:
        """All layers, then the logits [V] of the last row."""
        x_TE = self._model.embed(ids_T)
        num_layers = len(self._model.layers)
        for index in range(num_layers):
            if self._plan.summary.pruned and index == self._plan.params.pruning_layer:
                x_TE = self._pruning_layer(index, x_TE)
            elif index == num_layers - 1:
                x_TE = self._last_layer(index, x_TE)
            else:
                self._whole_layer(index, x_TE)
            self._pace.layer_enqueued(self.positions_T.shape[0])
            done_tokens = self._plan.prompt_tokens * (index + 1) // num_layers
            self._observer.progress(done_tokens=done_tokens)
        return self._model.logits(x_TE[-1:])[0]

    def _whole_layer(self, index: int, x_TE: Tensor) -> None:
        ran = self._steps.whole(
            self._model.layers[index],
            x_TE,
            self._rope,
            window=self.selection.window(index),
            sink=self._sink(index),
        )
        if index in self._plan.trimmed_layers:
            self._trim(index, ran)
        else:
            self._settle(index, ran)

    def _pruning_layer(self, index: int, x_TE: Tensor) -> Tensor:
        layer = self._model.layers[index]
        kv = self._steps.keys_and_values(layer, x_TE, self._rope, sink=self._sink(index))
        window = slice(x_TE.shape[0] - self.selection.window(index), None)
        q_WHD = layer.q(x_TE[window], self._rope.rows(window))
        self._settle(index, LayerRun(kv=kv, q_WHD=q_WHD))
        chosen_N = self.selection.kept()
        kept_N = self.positions_T if chosen_N is None else chosen_N
        if self.selection.plan is not self._plan:
            self._plan = self.selection.plan
            self._slab = self._plan.slab
            self._observer.settled(self._plan)
        self._release_awaiting()
        self.positions_T, self._rope = kept_N, self._rope.rows(kept_N)
        is_last = index == len(self._model.layers) - 1
        onward = slice(-1, None) if is_last else slice(None)
        return self._steps.chosen(
            layer,
            x_TE[kept_N[onward]],
            self._rope.rows(onward),
            kv,
            positions_N=kept_N[onward],
        )

    def _last_layer(self, index: int, x_TE: Tensor) -> Tensor:
        layer, last = self._model.layers[index], slice(-1, None)
        kv = self._steps.keys_and_values(layer, x_TE, self._rope, sink=self._sink(index))
        window = slice(-max(1, self.selection.window(index)), None)
        q_WHD = layer.q(x_TE[window], self._rope.rows(window))
        if index in self._plan.trimmed_layers:
            self._trim(index, LayerRun(kv=kv, q_WHD=q_WHD))
        attn_1HD = self._steps.attention.causal(q_WHD[last], kv.k_TGD, kv.v_TGD)
        return layer.finish(x_TE[last], attn_1HD)

    def _sink(self, index: int) -> Callable[[int, Tensor, Tensor], None]:
        """Where a layer's blocks go: to the observer, or nowhere if a selection leaves later."""
        if index in self._plan.held_layers or index in self._plan.trimmed_layers:
            return drop_block

        def emit(first_slot: int, k_BGD: Tensor, v_BGD: Tensor) -> None:
            self._emit(
                index, k_BGD, v_BGD, first_slot=first_slot, positions_RN=self.positions_T[None]
            )

        return emit

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
            index, keys_NGD, values_NGD, first_slot=0, positions_RN=self.positions_T[slots_RN]
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


def checked_ids(token_ids: Sequence[int], model: Transformer) -> Tensor:
    """Token ids as int64 [T] on the model's device.

    Raises:
        InvalidRequestError: one is outside the vocabulary.
    """
    vocab_size = model.config.vocab_size
    try:
        # An array takes a list in several times faster than a tensor does, and a tensor looks
        # through it several times faster than Python: together milliseconds of a long prompt.
        ids = array("q", token_ids)
    except OverflowError:
        raise _outside(token_ids, vocab_size=vocab_size) from None
    ids_T = torch.frombuffer(ids, dtype=torch.int64) if ids else torch.empty(0, dtype=torch.int64)
    if ids and not 0 <= int(ids_T.min()) <= int(ids_T.max()) < vocab_size:
        raise _outside(token_ids, vocab_size=vocab_size)
    return ids_T.to(model.device)


def _outside(token_ids: Sequence[int], *, vocab_size: int) -> InvalidRequestError:
    bad = next(i for i in token_ids if not 0 <= i < vocab_size)
    return InvalidRequestError(
        f"token id {bad} is outside the vocabulary of {vocab_size}: the ids come from another "
        "model's tokenizer; tokenize with this model's own",
        param="prompt",
    )


def _raise_if_stopped(stop: Callable[[], bool], *, prompt_tokens: int) -> None:
    if stop():
        raise CancelledError(
            f"the prefill of {prompt_tokens} tokens was stopped: its request was cancelled or its "
            "caller went away; nothing is left to do"
        )
