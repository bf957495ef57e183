"""Keeps the engine some layers ahead of a CUDA device, not a whole prompt.

Calls only enqueue work there. Without a limit a prompt would be enqueued in a few milliseconds and
could not be stopped any more; with one, it stops within these layers and its progress is true. What
counts is the work ahead, not its layers: after pruning a layer is short, and its launches take
nearly as long as its computation.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch

LAYERS_AHEAD = 4
"""Layers on the whole prompt, or what takes as long, that may be enqueued and not computed."""

_SHORT = 8192
"""Passes below count as this many tokens: their layers are short as well."""


class Mark(Protocol):
    """A point in a device's work."""

    def synchronize(self) -> None:
        """Returns once the device is past it."""


class Pace:
    """Of one pass.

    Args:
        prompt_tokens: of all its prompts.
        mark: marks what is enqueued by now; None where a call returns when its work is done.
    """

    def __init__(self, prompt_tokens: int, *, mark: Callable[[], Mark] | None) -> None:
        self._most_tokens = LAYERS_AHEAD * max(prompt_tokens, _SHORT)
        self._mark = mark
        self._ahead: deque[tuple[Mark, int]] = deque()
        self._ahead_tokens = 0

    def layer_enqueued(self, tokens: int) -> None:
        """Waits, after a layer on `tokens` tokens, until no more work than allowed is ahead."""
        if self._mark is None:
            return
        self._ahead.append((self._mark(), tokens))
        self._ahead_tokens += tokens
        while self._ahead_tokens > self._most_tokens:
            mark, done_tokens = self._ahead.popleft()
            mark.synchronize()
            self._ahead_tokens -= done_tokens


def mark_for(device: torch.device) -> Callable[[], Mark] | None:
    """Marks work on the current stream of `device`; None for a CPU."""
    return partial(_mark, device) if device.type == "cuda" else None


def _mark(device: torch.device) -> Mark:
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event
