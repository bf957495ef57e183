"""The one engine thread: runs prompts, copies their KV to slabs, samples their first tokens."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import structlog
import torch

from prefill_service.engine.handoff_notes import TimedKv
from prefill_service.engine.job import FirstTokens, PrefillJob, Progress, PromptRequest
from prefill_service.engine.plan import PromptPlan
from prefill_service.engine.prompt_pass import PackedPrompt
from prefill_service.engine.prompt_slab import PromptSlab
from prefill_service.engine.prompt_trace import TracedPrompt
from prefill_service.engine.runner import PrefillOutput, PrefillRunner
from prefill_service.engine.slab_writer import slab_writer
from shared.errors import InternalError, TandemError
from shared.model.sampler import DrawRow, sample_rows
from shared.types.sampling import SampledToken
from shared.types.trace import PromptTrace

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """What the engine thread leaves behind beside the slab."""

    plan: PromptPlan
    """The final plan."""
    first_tokens: tuple[SampledToken, ...]
    """One a branch."""
    prefill_seconds: float
    """From when the pass took the prompt, its ids on the host, to when its first token was known
    there: sending the ids, the forward pass of all prompts of the pass, selection, and sampling."""
    select_seconds: float
    """Scoring and selecting."""
    ended_at: float
    """When the first token was known, in monotonic seconds: the transfer's rest begins here."""
    trace: Callable[[], PromptTrace] | None = None
    """Says what was kept, when the request asked; takes a while, as it looks at every position."""


class PromptWork:
    """A prompt for the engine thread, and what it came to there.

    Args:
        job: the prompt.
        plan: what was decided about it.
        slab: where its KV goes.
    """

    def __init__(self, job: PrefillJob, *, plan: PromptPlan, slab: PromptSlab) -> None:
        self.job = job
        self.plan = plan
        self.slab = slab
        self.computed: asyncio.Future[Computed] = asyncio.get_running_loop().create_future()
        """Its end; a TandemError where it failed or was stopped."""


class ComputeThread:
    """Runs one pass at a time; `stalled_seconds` tells a watchdog when it hangs.

    Args:
        runner: the forward pass.
    """

    def __init__(self, runner: PrefillRunner) -> None:
        self._runner = runner
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="prefill-engine")
        self._checksums = ThreadPoolExecutor(1, thread_name_prefix="prefill-crc")
        self._last_beat: float | None = None
        self._going = 0

    @property
    def checksums(self) -> ThreadPoolExecutor:
        """Where checksums are computed."""
        return self._checksums

    def stalled_seconds(self) -> float:
        """Seconds since a layer last began while a pass runs; 0 when idle. Any thread."""
        beat = self._last_beat
        return 0.0 if beat is None else time.monotonic() - beat

    async def run(self, pack: Sequence[PromptWork]) -> None:
        """Runs prompts in one pass, emitting progress and first tokens while it does.

        Every prompt's `computed` is set when this returns, and as soon as it failed or was
        stopped: with CancelledError when its job was stopped, others as the runner has them, and
        InternalError for whatever else went wrong in there.
        """
        loop = asyncio.get_running_loop()
        began = time.monotonic()
        try:
            await loop.run_in_executor(self._executor, self._run, pack, loop, began)
        except Exception as error:  # noqa: BLE001  the border of a pass: its callers must hear
            for work in pack:
                if not work.computed.done():
                    work.computed.set_exception(_unexpected(work.job, error))

    def close(self) -> None:
        """Lets the threads end; a running prompt must have been stopped before."""
        self._executor.shutdown(wait=True)
        self._checksums.shutdown(wait=True)

    def _run(
        self, pack: Sequence[PromptWork], loop: asyncio.AbstractEventLoop, began: float
    ) -> None:
        runs: list[_ThreadRun] = []
        self._last_beat, self._going = time.monotonic(), len(pack)
        try:
            device = self._runner.device
            runs.extend(
                _ThreadRun(work, loop=loop, device=device, ended=self._one_ended) for work in pack
            )
            prompts = [run.prompt(self._beat) for run in runs]
            outputs = self._runner.run_pack(prompts, ended=lambda i, error: runs[i].fail(error))
            # All first tokens before any slab: a caller must not wait for the copies of others.
            for run, output in zip(runs, outputs, strict=True):
                if isinstance(output, PrefillOutput):
                    run.sample(output)
            for run in runs:
                run.finish(began=began)
        finally:
            for run in runs:
                run.close()
            self._last_beat = None

    def _beat(self) -> None:
        self._last_beat = time.monotonic()

    def _one_ended(self) -> None:
        """Whoever hears of the last end finds the thread idle."""
        self._going -= 1
        if self._going == 0:
            self._last_beat = None


@dataclass(frozen=True, slots=True)
class _Sampled:
    """A prompt that went through the model, and its first tokens."""

    output: PrefillOutput
    tokens: tuple[SampledToken, ...]
    ended_at: float


class _ThreadRun:
    """One prompt of a pass, in the engine thread."""

    def __init__(
        self,
        work: PromptWork,
        *,
        loop: asyncio.AbstractEventLoop,
        device: torch.device,
        ended: Callable[[], None],
    ) -> None:
        self._work = work
        self._ended = ended
        self._loop = loop
        self._writer = slab_writer(work.slab, progressed=self._progressed, device=device)
        self._timed: TimedKv | None = None
        self._traced: TracedPrompt | None = None
        if work.job.notes is not None:
            self._timed = TimedKv(self._writer, notes=work.job.notes, device=device)
            self._traced = TracedPrompt(self._timed)
        self._sampled: _Sampled | None = None

    def prompt(self, beat: Callable[[], None]) -> PackedPrompt:
        """As the runner takes it; `beat` is called whenever it looks whether to stop."""
        job = self._work.job

        def stop() -> bool:
            beat()
            return job.stopping()

        return PackedPrompt(
            token_ids=job.request.token_ids,
            plan=self._work.plan,
            observer=self._traced or self._writer,
            stop=stop,
        )

    def sample(self, output: PrefillOutput) -> None:
        """Draws the first tokens and tells them."""
        job = self._work.job
        try:
            tokens = first_tokens(output.logits_V, job.request, best_2=output.best_2)
        except Exception as error:  # noqa: BLE001  of this prompt alone
            self.fail(error)
            return
        self._sampled = _Sampled(output, tokens, ended_at=time.monotonic())
        self._loop.call_soon_threadsafe(job.emit, FirstTokens(tokens))

    def finish(self, *, began: float) -> None:
        """Waits until all of its KV is in the slab, and ends well; unless it failed before.

        Args:
            began: when the pass took its prompts, in monotonic seconds.
        """
        if self._sampled is None:
            return
        output = self._sampled.output
        try:
            self._writer.finish()
            self._work.slab.finish()
            trace = None
            if self._timed is not None and self._traced is not None:
                self._timed.finish(ended_at=self._sampled.ended_at)
                trace = partial(self._traced.trace, output.plan, scores_C=output.scores_C)
        except Exception as error:  # noqa: BLE001  of this prompt alone
            self.fail(error)
            return
        computed = Computed(
            plan=output.plan,
            first_tokens=self._sampled.tokens,
            prefill_seconds=self._sampled.ended_at - began,
            select_seconds=output.select_seconds,
            ended_at=self._sampled.ended_at,
            trace=trace,
        )
        self._end(lambda future: future.set_result(computed))

    def fail(self, error: Exception) -> None:
        """Ends with an error."""
        told = error if isinstance(error, TandemError) else _unexpected(self._work.job, error)
        self._end(lambda future: future.set_exception(told))

    def close(self) -> None:
        """Writes to the slab no more; twice is fine."""
        self._writer.close()

    def _end(self, settle: Callable[[asyncio.Future[Computed]], None]) -> None:
        self.close()
        self._ended()
        self._loop.call_soon_threadsafe(_unless_done, self._work.computed, settle)

    def _progressed(self, done_tokens: int) -> None:
        job = self._work.job
        self._loop.call_soon_threadsafe(job.emit, Progress(done_tokens, job.tokens))


def _unexpected(job: PrefillJob, error: Exception) -> InternalError:
    """Stands for an error that nobody foresaw, which is logged."""
    _log.error("prefill failed", handoff_id=job.key.handoff_id, tokens=job.tokens, exc_info=error)
    found = InternalError(
        "the prefill of this prompt failed in a way it did not expect: see the log of the prefill "
        "worker; other prompts go on"
    )
    found.__cause__ = error
    return found


def _unless_done(
    future: asyncio.Future[Computed], settle: Callable[[asyncio.Future[Computed]], None]
) -> None:
    """A future that nobody waits for any more was cancelled."""
    if not future.done():
        settle(future)


@torch.inference_mode()
def first_tokens(
    logits_V: torch.Tensor, request: PromptRequest, *, best_2: torch.Tensor | None = None
) -> tuple[SampledToken, ...]:
    """Draw 0 of every branch from float32 logits [V], or the tokens that the client saw already.

    Args:
        logits_V: on any device.
        request: how to draw.
        best_2: `best_tokens` of the logits, where they came to the host already: who asks for
            nothing else then waits for nothing else.
    """
    if request.forced_first_tokens:
        return tuple(SampledToken(token_id=token_id) for token_id in request.forced_first_tokens)
    banned = request.stop.token_ids if request.stop.min_tokens > 0 else ()
    matcher = request.matcher
    allowed_V = None if matcher is None else matcher.allowed(logits_V.shape[0])
    rows = [
        DrawRow(
            params=request.sampling,
            branch=branch,
            prompt_ids=request.token_ids,
            banned_ids=banned,
            allowed_V=allowed_V,
        )
        for branch in range(request.num_branches)
    ]
    best_2B = None if best_2 is None else best_2[:, None].expand(-1, len(rows))
    return tuple(sample_rows(logits_V.expand(len(rows), -1), rows, best_2B=best_2B))
