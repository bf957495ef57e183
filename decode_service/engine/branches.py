"""The answers that share one prompt: which of them wait for their call, run, or are over.

All read the whole pages of the prompt. Each has pages of its own from the prompt's last, partly
filled page on, because there it writes what it generates.

Shapes: none; pages are copied as they are.
"""

from collections.abc import Iterable
from dataclasses import replace

from decode_service.engine.kv_cache import (
    GroupPages,
    LengthGroup,
    PagedKvCache,
    SequencePages,
    page_table,
)
from decode_service.engine.sequence import PromptKv
from shared.kv.geometry import PAGE_SIZE

MOST_TAIL_SLOTS = PAGE_SIZE - 1
"""Prompt slots that lie in a partly filled page at most."""


class Branches:
    """Life of the answers to one prompt, by number.

    Args:
        count: how many there are.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._waiting = set(range(count))
        self._running: set[int] = set()
        self.started = False
        """Whether any answer began to run."""

    @property
    def waiting(self) -> frozenset[int]:
        """Answers whose Decode call has not come."""
        return frozenset(self._waiting)

    @property
    def running(self) -> frozenset[int]:
        """Answers that the engine works on."""
        return frozenset(self._running)

    @property
    def over(self) -> bool:
        """Whether every answer has ended or was given up."""
        return not self._waiting and not self._running

    def claim(self, branch: int) -> bool:
        """A waiting answer begins to run; False when it does not wait."""
        if branch not in self._waiting:
            return False
        self._waiting.remove(branch)
        self._running.add(branch)
        self.started = True
        return True

    def end(self, branch: int) -> None:
        """A running answer is over."""
        assert branch in self._running, "only a claimed answer ends"
        self._running.remove(branch)

    def give_up(self, branches: Iterable[int]) -> list[int]:
        """Waiting answers that nobody will ask for; returns those that did wait."""
        dropped = sorted(self._waiting.intersection(branches))
        self._waiting.difference_update(dropped)
        return dropped


def branch_prompt(cache: PagedKvCache, prompt: PromptKv, own: SequencePages) -> PromptKv:
    """The prompt as another branch sees it: its whole pages, then the branch's own.

    Args:
        cache: where the pages are.
        prompt: the first branch's.
        own: pages for the tail of the prompt and the branch's growth.
    """

    def joined(group: LengthGroup) -> GroupPages:
        shared = prompt.pages.of(group).pages[: prompt.slots[group] // PAGE_SIZE]
        return page_table((*shared, *own.of(group).pages), cache.device)

    pages = SequencePages(front=joined(LengthGroup.FRONT), rest=joined(LengthGroup.REST))
    return replace(prompt, pages=pages)


def copy_tails(cache: PagedKvCache, prompt: PromptKv, branches: Iterable[PromptKv]) -> None:
    """Copies the prompt's partly filled pages to every branch; on the engine thread."""
    for group, slots in prompt.slots.items():
        if slots % PAGE_SIZE == 0:
            continue
        last, memory = slots // PAGE_SIZE, cache.pools[group].memory
        source = prompt.pages.of(group).pages[last]
        for branch in branches:
            memory[:, :, branch.pages.of(group).pages[last]] = memory[:, :, source]
