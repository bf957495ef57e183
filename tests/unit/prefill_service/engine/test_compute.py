"""The engine thread: what of a prompt's time is the engine's own."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from prefill_service.engine import compute
from prefill_service.engine.compute import ComputeThread, PromptWork
from prefill_service.engine.host_slab import HostSlab
from prefill_service.engine.plan import plan_prompt
from prefill_service.engine.runner import PrefillRunner
from shared.model.attention import TorchAttention
from shared.model.transformer import Transformer
from shared.types.methods import PruningParams
from tests.support.host_slabs import host_slab
from tests.support.prefill_jobs import job_of

PARAMS = PruningParams(pruning_layer=3, deferred_layers=2, keep_rate=0.5)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def work_for(model: Transformer, executor: ThreadPoolExecutor, *, tokens: int) -> PromptWork:
    job = job_of(tokens)
    plan = plan_prompt(
        config=model.config,
        geometry=model.geometry(),
        params=PARAMS,
        options=job.request.options,
        prompt_tokens=tokens,
    )
    slab = host_slab(plan.slab, geometry=plan.geometry, executor=executor)
    return PromptWork(job, plan=plan, slab=slab)


async def test_its_own_time_is_from_the_ids_to_the_first_token_without_the_slab(
    tiny_model: Transformer, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both prompts of a pass: the ids taken in before it, each one's sampling, and no copy."""
    moments: dict[str, list[float]] = {"pass": [], "sampled": [], "copied": []}

    class Watched(PrefillRunner):
        def run_pack(self, *arguments: Any, **named: Any) -> Any:
            moments["pass"].append(time.monotonic())
            return super().run_pack(*arguments, **named)

    draw = compute.first_tokens

    def first_tokens(*arguments: Any, **named: Any) -> Any:
        drawn = draw(*arguments, **named)
        moments["sampled"].append(time.monotonic())
        return drawn

    def finish(_slab: HostSlab) -> None:
        moments["copied"].append(time.monotonic())

    monkeypatch.setattr(compute, "first_tokens", first_tokens)
    monkeypatch.setattr(HostSlab, "finish", finish)
    thread = ComputeThread(Watched(tiny_model, attention=TorchAttention(), chunk_tokens=16))
    pack = [work_for(tiny_model, executor, tokens=tokens) for tokens in (40, 30)]
    called = time.monotonic()
    await thread.run(pack)
    thread.close()
    for work, sampled in zip(pack, moments["sampled"], strict=True):
        done = await work.computed
        assert sampled <= done.ended_at <= min(moments["copied"])
        assert sampled - moments["pass"][0] <= done.prefill_seconds <= done.ended_at - called
        assert done.select_seconds <= done.prefill_seconds
        work.slab.close()
