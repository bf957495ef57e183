"""Whether rows are about to join, by the commits that are under way."""

from decode_service.engine.rows_to_come import FORETOLD_SECONDS, RowsToCome


def test_a_commit_counts_until_it_ends():
    rows_to_come = RowsToCome(clock=lambda: 1e9)
    assert not rows_to_come()
    with rows_to_come.expected(foretold=False):
        with rows_to_come.expected(foretold=False):
            assert rows_to_come()
        assert rows_to_come()
    assert not rows_to_come()


def test_one_that_is_foretold_counts_for_a_moment():
    now = [100.0]
    rows_to_come = RowsToCome(clock=lambda: now[0])
    with rows_to_come.expected(foretold=True):
        assert rows_to_come()
        now[0] += FORETOLD_SECONDS
        assert not rows_to_come()
        with rows_to_come.expected(foretold=False):
            assert rows_to_come()
    assert not rows_to_come()
