"""How the Python interpreter of a serving process treats requests that are short of time."""

import gc
import sys

SWITCH_S = 0.0005
"""How long a thread keeps the interpreter while another one of a worker wants it, in seconds.

Python's own 5 ms are as long as all that a pair adds to a first token: a loop that gets ready would
hold up the thread that computes, and that thread the first token on its way out.
"""


def keep_objects() -> None:
    """What exists now stays: the collector looks through it no more.

    A process that has loaded its libraries has some hundred thousand objects, and going through
    them once stops every thread for longer than a request may be held up.
    """
    gc.collect()
    gc.freeze()


def switch_threads_soon() -> None:
    """Threads that want the interpreter get it after `SWITCH_S`."""
    sys.setswitchinterval(SWITCH_S)
