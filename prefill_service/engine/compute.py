"""The one engine thread: runs a prompt, copies its KV to its slab, samples the first token."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import structlog
import torch

from prefill_service.engine.handoff_notes import TimedKv
from prefill_service.engine.job import FirstTokens, PrefillJob, Progress, PromptRequest
from prefill_service.engine.plan import PromptPlan
from prefill_service.engine.prompt_slab import PromptSlab
from prefill_service.engine.prompt_trace import TracedPrompt
from prefill_service.engine.runner import PrefillRunner
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
    """Forward pass, selection included."""
    select_seconds: float
    """Scoring and selecting."""
    ended_at: float
    """When the first token was known, in monotonic seconds: the transfer's rest begins here."""
    trace: Callable[[], PromptTrace] | None = None
    """Says what was kept, when the request asked; takes a while, as it looks at every position."""


class ComputeThread:
    """Runs one prompt at a time; `stalled_seconds` tells a watchdog when it hangs.

    Args:
        runner: the forward pass.
    """

    def __init__(self, runner: PrefillRunner) -> None:
        self._runner = runner
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="prefill-engine")
        self._checksums = ThreadPoolExecutor(1, thread_name_prefix="prefill-crc")
        self._last_beat: float | None = None

    @property
    def checksums(self) -> ThreadPoolExecutor:
        """Where checksums are computed."""
        return self._checksums

    def stalled_seconds(self) -> float:
        """Seconds since a layer last began while a prompt runs; 0 when idle. Any thread."""
        beat = self._last_beat
        return 0.0 if beat is None else time.monotonic() - beat

    async def run(self, job: PrefillJob, *, plan: PromptPlan, slab: PromptSlab) -> Computed:
        """Runs a prompt, emitting progress and the first token while it does.

        Raises:
            TandemError: CancelledError when the job was stopped, others as the runner has them;
                InternalError stands for whatever else went wrong in there.
        """
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._executor, self._run, job, plan, slab, loop)
        except TandemError:
            raise
        except Exception as error:
            _log.exception("prefill failed", handoff_id=job.key.handoff_id, tokens=job.tokens)
            raise InternalError(
                "the prefill of this prompt failed in a way it did not expect: see the log of the "
                "prefill worker; other prompts go on"
            ) from error

    def close(self) -> None:
        """Lets the threads end; a running prompt must have been stopped before."""
        self._executor.shutdown(wait=True)
        self._checksums.shutdown(wait=True)

    def _run(
        self,
        job: PrefillJob,
        plan: PromptPlan,
        slab: PromptSlab,
        loop: asyncio.AbstractEventLoop,
    ) -> Computed:
        def stop() -> bool:
            self._last_beat = time.monotonic()
            return job.stopping()

        def progressed(done_tokens: int) -> None:
            loop.call_soon_threadsafe(job.emit, Progress(done_tokens, job.tokens))

        writer = slab_writer(slab, progressed=progressed, device=self._runner.device)
        timed = traced = None
        if job.notes is not None:
            timed = TimedKv(writer, notes=job.notes, device=self._runner.device)
            traced = TracedPrompt(timed)
        self._last_beat = time.monotonic()
        try:
            output = self._runner.run(
                token_ids=job.request.token_ids,
                plan=plan,
                observer=traced or writer,
                stop=stop,
            )
            tokens = first_tokens(output.logits_V, job.request)
            ended_at = time.monotonic()
            loop.call_soon_threadsafe(job.emit, FirstTokens(tokens))
            writer.finish()
            slab.finish()
            trace = None
            if timed is not None and traced is not None:
                timed.finish(ended_at=ended_at)
                trace = partial(traced.trace, output.plan, scores_C=output.scores_C)
        finally:
            writer.close()
            self._last_beat = None
        return Computed(
            plan=output.plan,
            first_tokens=tokens,
            prefill_seconds=output.prefill_seconds,
            select_seconds=output.select_seconds,
            ended_at=ended_at,
            trace=trace,
        )


@torch.inference_mode()
def first_tokens(logits_V: torch.Tensor, request: PromptRequest) -> tuple[SampledToken, ...]:
    """Draw 0 of every branch from float32 logits [V], or the tokens that the client saw already."""
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
    return tuple(sample_rows(logits_V.expand(len(rows), -1), rows))
