"""Hypothesis' guess that a strategy draws from the global generator is no failure of a test.

It compares the generator's state around each draw, so that whatever another thread draws meanwhile,
a library's back-off for one, would fail a property that never touches it.
"""

import random
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisDeprecationWarning


@pytest.fixture(scope="module")
def other_thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


@st.composite
def drawn_beside(draw: st.DrawFn, thread: ThreadPoolExecutor) -> int:
    """An integer; while it is drawn, the other thread draws from the global generator."""
    value = draw(st.integers())
    thread.submit(random.random).result()
    return value


@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_a_draw_is_not_blamed_for_another_thread(
    data: st.DataObject, other_thread: ThreadPoolExecutor
) -> None:
    data.draw(drawn_beside(other_thread))


def test_the_guess_is_still_made(other_thread: ThreadPoolExecutor) -> None:
    @settings(max_examples=1, deadline=None, database=None)
    @given(data=st.data())
    def draw(data: st.DataObject) -> None:
        data.draw(drawn_beside(other_thread))

    with warnings.catch_warnings():
        warnings.simplefilter("error", HypothesisDeprecationWarning)
        with pytest.raises(HypothesisDeprecationWarning, match="random"):
            draw()
