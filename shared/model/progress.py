"""How long work on model files tells where it is."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """One report."""

    stage: str
    """`download`, `dequantise` or `write`."""
    done: int
    """Units finished: bytes of a download, tensors otherwise."""
    total: int
    """Units in all; 0 when that is not known."""


ProgressFn = Callable[[Progress], None]
"""Called often, in order, from the thread that does the work."""


def silent(progress: Progress) -> None:
    """Ignores the report."""
