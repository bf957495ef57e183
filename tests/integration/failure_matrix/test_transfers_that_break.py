"""Row "transfer error or crc": whatever breaks a transfer, the client gets the right tokens.

Everything is real and one fault is made on purpose, at each transition, of each kind.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from shared.transport.fault_plan import CHUNK_KINDS, CHUNK_MOMENTS, Fault, FaultKind, Moment
from tests.support.pools import Pool, running_pool

pytestmark = pytest.mark.asyncio(loop_scope="module")

DAMAGE = [
    Fault(kind=kind, moment=moment)
    for kind in (FaultKind.DROP, FaultKind.CORRUPT, FaultKind.TRUNCATE)
    for moment in (Moment.FIRST, Moment.MIDDLE, Moment.LAST)
]
HARMLESS = [
    *(Fault(kind=FaultKind.DUPLICATE, moment=moment) for moment in sorted(CHUNK_MOMENTS, key=str)),
    *(Fault(kind=FaultKind.DELAY, moment=moment, delay_s=0.02) for moment in Moment),
]
CUTS = [Fault(kind=FaultKind.KILL, moment=moment) for moment in Moment]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(tiny_model_dir: Path, profile: Path) -> AsyncIterator[Pool]:
    async with running_pool(tiny_model_dir, profile, decodes=2) as started:
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


@pytest.mark.parametrize("fault", [*DAMAGE, *CUTS], ids=str)
async def test_a_broken_transfer_is_delivered_again_and_not_computed_again(
    pool: Pool, right: str, fault: Fault
) -> None:
    worker = pool.prefills[0]
    runs = worker.runner.runs
    pool.orders.waiting = [fault]
    answer = await pool.ask()
    assert pool.orders.made == [fault]
    assert (answer.text, answer.error) == (right, None)
    assert worker.runner.runs == runs + 1, "the KV was still there to be sent again"


@pytest.mark.parametrize("fault", HARMLESS, ids=str)
async def test_what_changes_no_byte_is_not_even_noticed(
    pool: Pool, right: str, fault: Fault
) -> None:
    granted = sum(decode.core.worker.table.counters.granted for decode in pool.decodes)
    pool.orders.waiting = [fault]
    answer = await pool.ask()
    assert pool.orders.made == [fault]
    assert (answer.text, answer.error) == (right, None)
    after = sum(decode.core.worker.table.counters.granted for decode in pool.decodes)
    assert after == granted + 1, "one grant was enough"


async def test_every_chunk_kind_is_tried() -> None:
    tried = {fault.kind for fault in (*DAMAGE, *HARMLESS)}
    assert tried >= CHUNK_KINDS


@pytest.mark.parametrize("kind", [FaultKind.CORRUPT, FaultKind.KILL])
async def test_when_no_transfer_works_there_is_one_error_and_no_wrong_token(
    pool: Pool, right: str, kind: FaultKind
) -> None:
    pool.orders.always = Fault(kind=kind, moment=Moment.MIDDLE)
    answer = await pool.ask()
    assert answer.error is not None
    # After the first failures no canary arrives either: then no handoff begins.
    assert answer.error["code"] in {"kv_transfer_failed", "no_transport"}
    assert right.startswith(answer.text), "what was shown before it was right"
    whole = await pool.http.post("/v1/completions", json=pool.body(stream=False))
    assert whole.status_code == 502
    assert whole.json()["error"]["code"] in {"kv_transfer_failed", "no_transport"}
    pool.orders.clear()
    assert (await pool.ask()).text == right, "nobody is blamed for good"
