"""Sizes of a step, rounded up so that few of them occur: what its graph is captured for."""

from dataclasses import dataclass

from decode_service.kernels.split_plan import SplitPlan, plan_splits
from shared.kv.geometry import PAGE_SIZE, pages_for

FEWEST_TOKENS = 4096
"""Contexts up to here share their graphs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """One size of step."""

    rows: int
    """Seats B."""
    tokens: int
    """Positions that a row may have, whole pages."""
    choice: int
    """Pages that a choice has room for; 0: every layer reads everything."""

    @property
    def pages(self) -> int:
        """Pages of `tokens` tokens."""
        return pages_for(self.tokens)

    def plan(self, *, kv_heads: int, head_dim: int, reads_choice: bool) -> SplitPlan:
        """How attention over whole rows, or over a choice, is cut."""
        most = self.choice * PAGE_SIZE if reads_choice else self.tokens
        return plan_splits(rows=self.rows, kv_heads=kv_heads, most_tokens=most, head_dim=head_dim)


def shape_for(*, rows: int, tokens: int, choice: int, max_rows: int, max_tokens: int) -> StepShape:
    """The smallest shape that holds a step.

    Args:
        rows: rows of the step.
        tokens: positions of its longest row, the fed token's included.
        choice: pages of its largest choice; 0 when no row chooses.
        max_rows: rows of any step.
        max_tokens: positions of any row.
    """
    assert rows <= max_rows, "the scheduler keeps to its batch"
    assert tokens <= max_tokens, "a row ends at the longest context"
    wide = min(max(_power_of_two(tokens), FEWEST_TOKENS), pages_for(max_tokens) * PAGE_SIZE)
    return StepShape(
        rows=min(_power_of_two(rows), max_rows),
        tokens=wide,
        choice=min(_power_of_two(choice), wide // PAGE_SIZE) if choice else 0,
    )


def _power_of_two(number: int) -> int:
    """The smallest power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()
