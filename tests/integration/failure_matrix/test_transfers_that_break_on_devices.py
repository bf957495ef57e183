"""The same row between device memories, where commits are said ahead and sums end the lane."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from decode_service.engine.intake import Intake
from shared.transport.fault_plan import Fault, FaultKind, Moment
from tests.support.pools import Pool, running_pool
from tests.support.prefill_worker import MEMORIES
from tests.support.transfer_parts import needs_nixl

pytestmark = [needs_nixl, pytest.mark.asyncio(loop_scope="module")]

BROKEN = [
    Fault(kind=FaultKind.DROP, moment=Moment.LAST),
    Fault(kind=FaultKind.CORRUPT, moment=Moment.FIRST),
    Fault(kind=FaultKind.TRUNCATE, moment=Moment.MIDDLE),
    *(Fault(kind=FaultKind.KILL, moment=moment) for moment in Moment),
]
HARMLESS = [
    Fault(kind=FaultKind.DUPLICATE, moment=Moment.LAST),
    Fault(kind=FaultKind.DELAY, moment=Moment.SEAL, delay_s=0.02),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(tiny_model_dir: Path, profile: Path) -> AsyncIterator[Pool]:
    ways = {"require_transport": "nixl"}
    prefill, decode = MEMORIES["device"] | ways, {"kv_memory": "device", **ways}
    async with running_pool(
        tiny_model_dir, profile, decodes=2, prefill=prefill, decode=decode
    ) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def right(pool: Pool) -> str:
    """The answer of a pair that nothing happens to."""
    answer = await pool.ask()
    assert answer.done
    assert answer.text
    return answer.text


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def _clean(pool: Pool) -> AsyncIterator[None]:
    pool.orders.clear()
    await pool.acquaint()  # a pair that has lost a handoff sends a canary before the next
    yield
    pool.orders.clear()
    await pool.nothing_left()


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each commit that a decode worker hears, whether its sums follow."""
    heard: list[bool] = []
    commit = Intake.commit

    async def noted(intake: Intake, manifest: Any, **named: Any) -> Any:
        heard.append(manifest.sums_follow)
        return await commit(intake, manifest, **named)

    monkeypatch.setattr(Intake, "commit", noted)
    return heard


@pytest.mark.parametrize("fault", BROKEN, ids=str)
async def test_a_broken_transfer_is_delivered_again_and_not_computed_again(
    pool: Pool, right: str, ahead: list[bool], fault: Fault
) -> None:
    worker = pool.prefills[0]
    runs = worker.runner.runs
    pool.orders.waiting = [fault]
    answer = await pool.ask()
    assert pool.orders.made == [fault]
    assert (answer.text, answer.error) == (right, None)
    assert worker.runner.runs == runs + 1, "the KV was still there to be sent again"
    assert ahead
    assert all(ahead)


@pytest.mark.parametrize("fault", HARMLESS, ids=str)
async def test_what_changes_no_byte_is_not_even_noticed(
    pool: Pool, right: str, ahead: list[bool], fault: Fault
) -> None:
    pool.orders.waiting = [fault]
    answer = await pool.ask()
    assert pool.orders.made == [fault]
    assert (answer.text, answer.error) == (right, None)
    assert ahead == [True], "one commit was enough"
