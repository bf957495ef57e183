"""Runs prompts through the model, one or several in a pass.

Shapes: T tokens of a prompt, N kept tokens, C candidates, V vocabulary.
"""

import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from prefill_service.engine.layer_steps import LayerSteps, PromptSteps
from prefill_service.engine.observer import KvObserver
from prefill_service.engine.packed_pass import AllEndedError, PackedPass
from prefill_service.engine.plan import PromptPlan
from prefill_service.engine.prompt_pass import PackedPrompt, PromptPass
from shared.errors import ConfigError, InvalidRequestError
from shared.model.attention import PrefillAttention
from shared.model.current_device import computing_on
from shared.model.device_attention import DeviceAttention
from shared.model.transformer import Transformer

DEFAULT_CHUNK_TOKENS = 1024
"""Tokens of a block unless configured."""


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


def ignore_end(_index: int, _error: Exception) -> None:
    """For callers that learn of an end when the pass is over."""


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
        prompt = PackedPrompt(token_ids=token_ids, plan=plan, observer=observer, stop=stop)
        (outcome,) = self.run_pack([prompt])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    @torch.inference_mode()
    def run_pack(
        self,
        prompts: Sequence[PackedPrompt],
        *,
        ended: Callable[[int, Exception], None] = ignore_end,
    ) -> list[PrefillOutput | Exception]:
        """Runs prompts in one pass; each has the results that it has alone, within rounding.

        Args:
            prompts: at least one.
            ended: is told as soon as one of them, by its index, failed or was stopped; nothing
                is done for it any more. The others go on.

        Returns:
            What each came to, in order; the errors are those of `run`.
        """
        with computing_on(self._model.device):
            return self._run_pack(prompts, ended=ended)

    def _run_pack(
        self, prompts: Sequence[PackedPrompt], *, ended: Callable[[int, Exception], None]
    ) -> list[PrefillOutput | Exception]:
        started = time.perf_counter()
        by_kernel = isinstance(self._attention, DeviceAttention)
        passes = [
            PromptPass(prompt, device=self._model.device, by_kernel=by_kernel) for prompt in prompts
        ]
        watch = _EndWatch(passes, ended=ended)
        ids: dict[PromptPass, Tensor] = {}
        for each, prompt in zip(passes, prompts, strict=True):
            with each.part():
                ids[each] = checked_ids(prompt.token_ids, self._model)
        logits: dict[PromptPass, Tensor] = {}
        try:
            logits = PackedPass(self._model, steps=self._steps(watch.look), prompts=passes).forward(
                ids
            )
            if self._model.device.type == "cuda":
                torch.cuda.synchronize(self._model.device)  # until here nothing waited for it
        except AllEndedError:
            pass
        except Exception as error:  # noqa: BLE001  of all prompts that are still there
            watch.end_all(error)
        watch.tell()
        seconds = time.perf_counter() - started
        return [_outcome(each, logits=logits.get(each), seconds=seconds) for each in passes]

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


class _EndWatch:
    """Looks, before every block, who wants to end; says so once for each.

    Args:
        prompts: of one pass.
        ended: is told the index of a prompt and its error.
    """

    def __init__(
        self, prompts: Sequence[PromptPass], *, ended: Callable[[int, Exception], None]
    ) -> None:
        self._going = dict(enumerate(prompts))
        self._ended = ended

    def look(self) -> None:
        """Asks every prompt that has not ended.

        Raises:
            AllEndedError: no prompt is left.
        """
        for prompt in self._going.values():
            if not prompt.ended:
                prompt.look()
        self.tell()
        if not self._going:
            raise AllEndedError

    def end_all(self, error: Exception) -> None:
        """Ends what is left."""
        for prompt in self._going.values():
            prompt.error = prompt.error or error
        self.tell()

    def tell(self) -> None:
        """Tells of those that ended since."""
        for index, prompt in list(self._going.items()):
            if prompt.error is not None:
                del self._going[index]
                self._ended(index, prompt.error)


def _outcome(
    prompt: PromptPass, *, logits: Tensor | None, seconds: float
) -> PrefillOutput | Exception:
    if prompt.error is not None:
        return prompt.error
    assert logits is not None, "it went through all layers"
    return PrefillOutput(
        plan=prompt.selection.plan,
        logits_V=logits,
        kept_N=prompt.positions_N,
        scores_C=prompt.selection.scores_C,
        select_seconds=prompt.selection.seconds,
        prefill_seconds=seconds,
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
