"""Rows of prefill workers that refuse or die, where a decode worker reads prompts itself."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from shared.transport.fault_plan import Fault, FaultKind, Moment
from tests.support.pools import running_pool
from tests.support.role_child import role_child
from tests.support.waiting import until

READS: dict[str, Any] = {"local_prefill_tokens": 4096}


async def test_a_pool_without_room_is_made_good_by_the_decode_worker(
    tiny_model_dir: Path, profile: Path
) -> None:
    """Row "P refuses or its queue is full": no 429, the same tokens."""
    async with running_pool(
        tiny_model_dir, profile, prefill={"queue_tokens": 8}, decode=READS, short_prompt_tokens=0
    ) as pool:
        (prefill,) = pool.prefills
        right = await pool.ask()
        assert right.report["route"].startswith("pair: ")
        prefill.runner.gate.clear()
        others = [asyncio.create_task(pool.ask())]
        await prefill.wait_load(running_requests=1)
        others.append(asyncio.create_task(pool.ask()))
        await prefill.wait_load(queued_requests=1)
        answer = await pool.ask()
        assert (answer.text, answer.error) == (right.text, None)
        assert "prefill_refused" in answer.report["route"]
        prefill.runner.gate.set()
        assert [each.text for each in await asyncio.gather(*others)] == [right.text] * 2


async def test_a_prefill_worker_that_dies_leaves_its_prompt_to_the_decode_worker(
    tiny_model_dir: Path, profile: Path, children: Any
) -> None:
    """Row "P dies before seal": the last one is gone; the stream goes on from its first token."""
    stuck = str(Fault(kind=FaultKind.DELAY, moment=Moment.MIDDLE, delay_s=600.0))
    ways = {"model": str(tiny_model_dir), "profile": str(profile), "faults": (stuck,)}
    with role_child(children, "prefill", **ways) as victim:
        async with running_pool(
            tiny_model_dir,
            profile,
            prefills=0,
            more_prefills=(victim.address,),
            decode=READS,
            short_prompt_tokens=0,
        ) as pool:
            shown: list[int] = []

            def kill_soon(frames: int) -> None:
                if frames >= 1 and victim.alive:
                    shown.append(frames)
                    victim.kill()

            answer = await pool.ask(kill_soon)
            assert shown
            assert (answer.error, answer.done) == (None, True)
            assert "local: " in answer.report["route"]
            await until(lambda: pool.gateway.workers.taking_prompts() == 0)
            again = await pool.ask()
            assert again.text == answer.text
            assert "no_prefill_worker" in again.report["route"]


@pytest.mark.parametrize("frames_first", [0, 3])
async def test_a_decode_worker_that_dies_while_it_reads_or_answers(
    tiny_model_dir: Path, profile: Path, children: Any, frames_first: int
) -> None:
    """Rows "D dies": before its first token another one reads the prompt; later it is an error."""
    ways = {"model": str(tiny_model_dir), "profile": str(profile), **READS}
    with role_child(children, "decode", **ways) as victim:
        async with running_pool(
            tiny_model_dir, profile, prefills=0, more_decodes=(victim.address,), decode=READS
        ) as pool:
            with pool.avoided("decode", victim.address):
                right = await pool.ask(max_tokens=200)

            def kill_soon(frames: int) -> None:
                if frames >= frames_first and victim.alive:
                    victim.kill()

            if not frames_first:
                victim.kill()
            with pool.avoided("decode", pool.decodes[0].address):
                answer = await pool.ask(kill_soon, max_tokens=200)
            if frames_first:
                assert answer.error is not None
                assert answer.error["code"] == "no_decode_worker"
                assert right.text.startswith(answer.text)
            else:
                assert (answer.text, answer.error) == (right.text, None)
            assert (await pool.ask(max_tokens=200)).text == right.text
