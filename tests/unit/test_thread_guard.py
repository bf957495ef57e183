"""The guard against threads that outlive their tests sees them, and only them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.thread_guard import LIBRARY_THREADS, no_thread_left


@contextmanager
def waiting(name: str, ending: threading.Event) -> Iterator[None]:
    thread = threading.Thread(target=ending.wait, name=name, daemon=True)
    thread.start()
    yield
    ending.set()
    thread.join()


@pytest.fixture
def ending() -> threading.Event:
    return threading.Event()


def test_a_thread_that_goes_on_is_named(ending: threading.Event) -> None:
    guard = no_thread_left(wait_s=0.01)
    guard.__enter__()
    with waiting("left-behind", ending), pytest.raises(AssertionError, match="left-behind"):
        guard.__exit__(None, None, None)


def test_one_that_ends_meanwhile_is_fine(ending: threading.Event) -> None:
    with no_thread_left():
        thread = threading.Thread(target=ending.wait)
        thread.start()
        threading.Timer(0.01, ending.set).start()
    assert not thread.is_alive()


def test_one_that_began_before_is_not_this_modules_fault(ending: threading.Event) -> None:
    with waiting("began-before", ending), no_thread_left(wait_s=0.01):
        pass


def test_a_librarys_own_thread_may_go_on(ending: threading.Event) -> None:
    guard = no_thread_left(wait_s=0.01)
    guard.__enter__()
    with waiting(f"Thread-1 ({LIBRARY_THREADS[0]})", ending):
        guard.__exit__(None, None, None)
