"""The page pool conserves pages over any sequence of operations."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.errors import ConfigError, InternalError
from shared.kv.pool import PagePool

PAGES = 24


class PoolMachine(RuleBasedStateMachine):
    """Allocates and frees at random beside a plain set of free pages."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(PAGES)
        self.free = set(range(PAGES))
        self.held: list[list[int]] = []

    @rule(n=st.integers(0, PAGES + 2))
    def allocate(self, n: int) -> None:
        pages = self.pool.allocate(n)
        if n > len(self.free):
            assert pages is None
            return
        assert pages is not None
        assert len(pages) == n
        assert pages == sorted(set(pages))
        assert set(pages) <= self.free
        runs = [s for s in range(PAGES - n + 1) if set(range(s, s + n)) <= self.free]
        if runs:
            assert pages == list(range(runs[0], runs[0] + n))
        else:
            assert pages == sorted(self.free)[:n]
        self.free -= set(pages)
        if pages:
            self.held.append(pages)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        pages = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.pool.free(data.draw(st.permutations(pages)))
        self.free |= set(pages)

    @precondition(lambda self: self.free)
    @rule(data=st.data())
    def double_free_is_refused_and_changes_nothing(self, data: st.DataObject) -> None:
        bad = data.draw(st.sampled_from(sorted(self.free)))
        good = self.held[0] if self.held else []
        with pytest.raises(InternalError, match=f"page {bad} "):
            self.pool.free([*good, bad])

    @invariant()
    def pages_add_up(self) -> None:
        self.pool.check_integrity()
        assert self.pool.num_free == len(self.free)
        assert self.pool.num_used == PAGES - len(self.free)


TestPagePool = PoolMachine.TestCase
TestPagePool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(page=st.one_of(st.integers(max_value=-1), st.integers(min_value=PAGES)))
def test_unknown_pages_are_refused(page: int) -> None:
    with pytest.raises(InternalError):
        PagePool(PAGES).free([page])


def test_a_page_named_twice_is_refused() -> None:
    pool = PagePool(4)
    assert pool.allocate(2) == [0, 1]
    with pytest.raises(InternalError):
        pool.free([1, 1])
    assert pool.num_free == 2


def test_lost_pages_are_noticed() -> None:
    pool = PagePool(4)
    pool._num_free -= 1
    with pytest.raises(InternalError, match="lost"):
        pool.check_integrity()


def test_a_pool_without_pages_is_a_setting_error() -> None:
    with pytest.raises(ConfigError):
        PagePool(0)
