"""A commit that is said ahead: what ends the work beside it, and what does not."""

import asyncio

import pytest

from prefill_service.engine.commit_ahead import CommitAhead
from shared.errors import ManifestError, TandemError, UnavailableError, UnreachableError


class Said:
    """A commit that ends when a test wants it to."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.cancelled = False
        self.ahead = CommitAhead(self._commit())

    def answered(self, error: TandemError | None = None) -> None:
        if error is None:
            self._answer.set_result(None)
        else:
            self._answer.set_exception(error)

    async def _commit(self) -> None:
        try:
            await self._answer
        except asyncio.CancelledError:
            self.cancelled = True
            raise


async def test_a_refusal_ends_the_work_and_is_what_it_failed_with() -> None:
    said, ended = Said(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    doing = asyncio.ensure_future(said.ahead.unless_refused(work()))
    await asyncio.sleep(0)
    said.answered(ManifestError("other layouts"))
    with pytest.raises(ManifestError, match="other layouts"):
        await doing
    assert ended.is_set()
    with pytest.raises(ManifestError):
        await said.ahead.answer()


@pytest.mark.parametrize("error", [UnreachableError("refused"), UnavailableError("reset")])
async def test_a_worker_that_is_away_leaves_the_verdict_to_the_work(error: TandemError) -> None:
    said, go = Said(), asyncio.Event()

    async def work() -> str:
        await go.wait()
        return "pushed"

    doing = asyncio.ensure_future(said.ahead.unless_refused(work()))
    said.answered(error)
    await asyncio.sleep(0.01)
    assert not doing.done()
    go.set()
    assert await doing == "pushed"
    with pytest.raises(type(error)):
        await said.ahead.answer()


async def test_an_answer_ahead_of_the_work_changes_nothing() -> None:
    said = Said()
    said.answered()
    assert await said.ahead.unless_refused(asyncio.sleep(0.01, "done")) == "done"
    await said.ahead.answer()


async def test_work_that_fails_is_what_counts_and_leaves_the_commit_to_a_cancel() -> None:
    said = Said()

    async def work() -> None:
        raise TandemError("the lane died")

    with pytest.raises(TandemError, match="lane died"):
        await said.ahead.unless_refused(work())
    await said.ahead.cancel()
    assert said.cancelled
    await said.ahead.cancel()  # again changes nothing
