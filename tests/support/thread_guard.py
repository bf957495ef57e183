"""Threads that outlive the module of tests that began them.

Such a thread works on beside somebody else's test. One that used the global random generator while
a collector was away made hypothesis accuse a property test of drawing from it.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

END_S = 10.0
"""Longest wait for threads that were told to end and are about to, in seconds."""

LIBRARY_THREADS = (
    "_poll_wrapper",  # grpc.aio's poller, one a process and never ended
    "tqdm_monitor",  # tqdm's, likewise
)
"""Parts of names of threads that libraries begin once and keep for the process."""


def running_threads() -> set[threading.Thread]:
    """Threads of this process that should end at some time, without the one that asks."""
    return {
        thread
        for thread in threading.enumerate()
        if thread is not threading.current_thread()
        and not any(part in thread.name for part in LIBRARY_THREADS)
    }


@contextmanager
def no_thread_left(*, wait_s: float = END_S) -> Iterator[None]:
    """Within it threads may begin and must end.

    Args:
        wait_s: longest wait for each that has not ended yet, in seconds.

    Raises:
        AssertionError: some go on; their names say whose they are.
    """
    before = running_threads()
    yield
    late = running_threads() - before
    for thread in late:
        thread.join(wait_s)
    left = sorted(thread.name for thread in late if thread.is_alive())
    assert not left, f"threads go on after the tests that began them: {left}; close their owners"
