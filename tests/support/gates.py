"""Runners that count their work and stand still at a chosen piece of it."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from decode_service.engine.sequence import Sequence as Row
from prefill_service.engine.prompt_pass import PackedPrompt
from prefill_service.engine.runner import PrefillOutput
from shared.types.sampling import SampledToken

LONGEST_S = 30.0
"""After this a gate opens by itself, so that a test that fails can end."""


class Gate:
    """Stands still at chosen pieces of work until it is opened."""

    def __init__(self) -> None:
        self.done = 0
        """Pieces that began."""
        self._at: frozenset[int] = frozenset()
        self._reached = threading.Event()
        self._permits = threading.Semaphore(0)

    def arm(self, *at: int) -> None:
        """These pieces (counted from 1, from now on) will stand still, each until it is opened."""
        self.done, self._at = 0, frozenset(at)
        self._reached.clear()
        self._permits = threading.Semaphore(0)

    def open(self) -> None:
        """Lets the piece that stands still go on."""
        self._reached.clear()
        self._permits.release()

    def open_for_good(self) -> None:
        """Nothing stands still any more."""
        self._at = frozenset()
        self.open()

    @property
    def reached(self) -> bool:
        """Whether a piece stands still."""
        return self._reached.is_set()

    def piece(self) -> None:
        """One piece of work begins."""
        self.done += 1
        if self.done in self._at:
            self._reached.set()
            self._permits.acquire(timeout=LONGEST_S)


class GatedBlocks:
    """A prefill runner whose pieces are the blocks of a layer; the gate stands inside a block."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.gate = Gate()
        self.runs = 0
        self.device: torch.device = inner.device

    def run_pack(
        self, prompts: Sequence[PackedPrompt], *, ended: Callable[[int, Exception], None]
    ) -> list[PrefillOutput | Exception]:
        self.runs += len(prompts)
        counted = [replace(prompt, stop=self._counted(prompt.stop)) for prompt in prompts]
        outcomes: list[PrefillOutput | Exception] = self._inner.run_pack(counted, ended=ended)
        return outcomes

    def _counted(self, stop: Callable[[], bool]) -> Callable[[], bool]:
        def counted() -> bool:
            stopping = stop()
            if not stopping:
                self.gate.piece()
            return stopping

        return counted


class GatedSteps:
    """A decode runner whose pieces are steps; the gate stands inside a step."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.gate = Gate()
        self.stepped: list[str] = []
        """Handoffs of the rows of all steps."""

    def step(self, rows: list[Row]) -> list[SampledToken]:
        self.stepped += [row.key.handoff_id for row in rows]
        self.gate.piece()
        tokens: list[SampledToken] = self._inner.step(rows)
        return tokens
