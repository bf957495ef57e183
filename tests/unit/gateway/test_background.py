"""Background tasks: failures are logged whatever their kind, and closing waits for them."""

import asyncio

from structlog.testing import capture_logs

from gateway.background import Background
from shared.errors import UnavailableError, UnreachableError


async def _fails(error: Exception) -> None:
    raise error


async def test_failures_of_every_kind_are_logged() -> None:
    background = Background()
    with capture_logs() as lines:
        background.spawn(_fails(UnavailableError("gone")), name="expected")
        background.spawn(_fails(ZeroDivisionError("defect")), name="defect")
        await background.close(timeout_s=5.0)
        await asyncio.sleep(0)
    said = {line["task"]: line["log_level"] for line in lines}
    assert said == {"expected": "warning", "defect": "error"}


async def test_a_worker_that_is_gone_is_no_warning() -> None:
    background = Background()
    with capture_logs() as lines:
        background.spawn(_fails(UnreachableError("nobody listens")), name="release")
        await background.close(timeout_s=5.0)
    (line,) = lines
    assert (line["log_level"], line["reason"]) == ("info", "nobody listens")


async def test_closing_waits_for_what_ends() -> None:
    background, done = Background(), []

    async def work() -> None:
        for _ in range(9):
            await asyncio.sleep(0)
        done.append(1)

    background.spawn(work(), name="work")
    await background.close(timeout_s=30.0)
    assert done == [1]


async def test_closing_cancels_what_is_late() -> None:
    background = Background()
    late = background.spawn(asyncio.Event().wait(), name="late")  # type: ignore[arg-type]
    await background.close(timeout_s=0.01)
    assert late.cancelled()
    await background.close(timeout_s=0.01)
