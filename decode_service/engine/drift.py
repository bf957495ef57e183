"""Drift of a selection: how much of full attention its layers still see, on a sample of steps.

A check costs the scores of full attention in every layer that read a choice, and changes nothing:
the layers have attended before it looks.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from decode_service.engine.recall import mean_mass
from decode_service.engine.runner import LayerRead, ObservedRunner, RowObserver
from decode_service.engine.sequence import Sequence
from shared.types.sampling import SampledToken


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftCheck:
    """One row at one step: shares of attention mass in the slots read, mean over query heads."""

    handoff_id: str
    """The row."""
    position: int
    """Position of the fed token."""
    mean: float
    """Mean over the layers that read a choice."""
    least: float
    """The lowest of them."""
    least_layer: int
    """Whose it is."""


class DriftProbe:
    """A step observer that weighs what the layers of some rows left out.

    Args:
        rows: the rows to look at, before their step.
        also: another observer, which is told everything.
    """

    def __init__(self, rows: list[Sequence], *, also: RowObserver | None = None) -> None:
        self._also = also
        self._positions = {row: row.position for row in rows}
        self._masses: dict[Sequence, dict[int, torch.Tensor]] = {row: {} for row in rows}

    def watches(self, row: Sequence) -> bool:
        """The rows to weigh, and those of the other observer."""
        return row in self._masses or (self._also is not None and self._also.watches(row))

    def layer_read(self, seen: LayerRead) -> None:
        """Weighs one layer, if it read a choice."""
        if self._also is not None:
            self._also.layer_read(seen)
        selection = seen.read.selection
        if selection is None or seen.row not in self._masses:
            return
        self._masses[seen.row][seen.layer] = mean_mass(seen.q_HD, seen.kv.keys(), selection)

    def checks(self) -> list[DriftCheck]:
        """What was found; nothing of rows that read everything."""
        return [
            _check(row, position=self._positions[row], masses=masses)
            for row, masses in self._masses.items()
            if masses
        ]


class DriftWatch:
    """A step runner around another one: checks every n-th step of each row.

    Args:
        runner: does the steps.
        every: n.
        on_check: told of each check of a step that succeeded, on the engine's thread.
    """

    def __init__(
        self, runner: ObservedRunner, *, every: int, on_check: Callable[[DriftCheck], None]
    ) -> None:
        assert every >= 1, "a watch that never looks is no watch"
        self._runner = runner
        self._every = every
        self._on_check = on_check

    def step(
        self, rows: list[Sequence], *, observer: RowObserver | None = None
    ) -> list[SampledToken]:
        """See `DecodeRunner.step`."""
        due = [row for row in rows if (row.steps + 1) % self._every == 0]
        if not due:
            return self._runner.step(rows, observer=observer)
        probe = DriftProbe(due, also=observer)
        tokens = self._runner.step(rows, observer=probe)
        for check in probe.checks():
            self._on_check(check)
        return tokens


def _check(row: Sequence, *, position: int, masses: dict[int, torch.Tensor]) -> DriftCheck:
    # Rounding may put a whole distribution a little above 1.
    shares = torch.stack(list(masses.values())).clamp(max=1.0).tolist()
    least, layer = min(zip(shares, masses, strict=True))
    return DriftCheck(
        handoff_id=row.key.handoff_id,
        position=position,
        mean=sum(shares) / len(shares),
        least=least,
        least_layer=layer,
    )
