"""Per-request overrides of the model profile."""

from dataclasses import dataclass
from enum import Enum


class Mode(Enum):
    """Which of the two methods a request uses."""

    AUTO = "auto"
    FULL = "full"
    PRUNE = "prune"
    SPARSE = "sparse"
    BOTH = "both"

    @property
    def prunes(self) -> bool:
        """Whether CLAA may prune the prompt."""
        return self in {Mode.AUTO, Mode.PRUNE, Mode.BOTH}

    @property
    def sparsifies(self) -> bool:
        """Whether DELTA may skip pages."""
        return self in {Mode.AUTO, Mode.SPARSE, Mode.BOTH}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """Overrides; None leaves the profile's value."""

    mode: Mode = Mode.AUTO
    """Which methods run."""
    keep_rate: float | None = None
    """Share of prompt tokens kept, in (0, 1]."""
    min_keep: int | None = None
    """Floor of the kept count, in tokens."""
    page_budget: int | None = None
    """DELTA page budget K, recency included."""
    recency_pages: int | None = None
    """DELTA recency pages L."""
