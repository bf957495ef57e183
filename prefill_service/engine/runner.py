"""Runs prompts through the model, one or several in a pass.

Shapes: T tokens of a prompt, N kept tokens, C candidates, M prompts of a pass, V vocabulary.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from prefill_service.engine.layer_steps import LayerSteps, PromptSteps
from prefill_service.engine.observer import KvObserver
from prefill_service.engine.packed_pass import AllEndedError, PackedPass
from prefill_service.engine.plan import PromptPlan
from prefill_service.engine.prompt_ids import checked_ids
from prefill_service.engine.prompt_pass import PackedPrompt, PromptPass
from prefill_service.engine.stopwatch import Stopwatch
from shared.errors import ConfigError
from shared.model.attention import PrefillAttention
from shared.model.current_device import computing_on
from shared.model.device_attention import DeviceAttention
from shared.model.sampler import best_tokens
from shared.model.staging import fetch
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
    best_2: Tensor
    """`best_tokens` of the logits, on the host: it came with the end of the pass."""
    select_time: Stopwatch
    """Measured scoring and selecting; reading it takes a while on a CUDA device."""
    prefill_seconds: float
    """Time in all, the observer's included."""

    @property
    def select_seconds(self) -> float:
        """Time for scoring and selecting."""
        return self.select_time.seconds()


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
        # Ids first: a device has nothing to do until they are there.
        sent = [_sent(prompt, self._model) for prompt in prompts]
        passes = [
            PromptPass(prompt, device=self._model.device, by_kernel=by_kernel) for prompt in prompts
        ]
        watch = _EndWatch(passes, ended=ended)
        ids: dict[PromptPass, Tensor] = {}
        for each, found in zip(passes, sent, strict=True):
            if isinstance(found, Exception):
                each.end(found)
            else:
                ids[each] = found
        logits: dict[PromptPass, _Logits] = {}
        try:
            packed = PackedPass(self._model, steps=self._steps(watch.look), prompts=passes)
            prompts_M, logits_MV = packed.forward(ids)
            best_2M = fetch(best_tokens(logits_MV))
            # Whatever can be done before the device has ended: until here nothing waited for it.
            logits = _by_prompt(prompts_M, logits_MV, best_2M.host)
            best_2M.wait()
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


def _sent(prompt: PackedPrompt, model: Transformer) -> Tensor | Exception:
    """A prompt's ids on their way to the device, or why there are none."""
    try:
        return checked_ids(prompt.token_ids, model)
    except Exception as error:  # noqa: BLE001  the other prompts of the pass must not suffer
        return error


@dataclass(frozen=True, slots=True, eq=False)
class _Logits:
    """What a prompt's last row came to."""

    logits_V: Tensor
    best_2: Tensor
    kept_N: Tensor


def _by_prompt(
    prompts: Sequence[PromptPass], logits_MV: Tensor, best_2M: Tensor
) -> dict[PromptPass, _Logits]:
    return {
        prompt: _Logits(logits_MV[index], best_2M[:, index], prompt.positions_N)
        for index, prompt in enumerate(prompts)
    }


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
    prompt: PromptPass, *, logits: _Logits | None, seconds: float
) -> PrefillOutput | Exception:
    if prompt.error is not None:
        return prompt.error
    assert logits is not None, "it went through all layers"
    return PrefillOutput(
        plan=prompt.selection.plan,
        logits_V=logits.logits_V,
        best_2=logits.best_2,
        kept_N=logits.kept_N,
        scores_C=prompt.selection.scores_C,
        select_time=prompt.selection.time,
        prefill_seconds=seconds,
    )
