"""Per-request overrides of the model profile."""

import math
from dataclasses import dataclass
from enum import Enum

from shared.errors import InvalidRequestError

MAX_PROTECTED_RANGES = 64
"""Ranges that one request may protect."""

MAX_OBSERVATION_WINDOW = 256
"""Longest observation window that a request may ask for, in tokens: scoring costs grow with it."""


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


class PromptPart(Enum):
    """A part of a conversation that a client may name instead of counting its tokens."""

    SYSTEM = "system"
    """All before the first turn that is not the system's, and every other system turn."""
    LAST_USER = "last_user"
    """Content of the last user turn."""
    QUESTION = "question"
    """The last sentence of the last user turn."""


@dataclass(frozen=True, slots=True, order=True)
class TokenRange:
    """Prompt tokens from `start` up to, but without, `end`."""

    start: int
    """First position."""
    end: int
    """Position after the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """Overrides; None leaves the profile's value."""

    mode: Mode = Mode.AUTO
    """Which methods run."""
    keep_rate: float | None = None
    """Share of prompt tokens kept, in (0, 1]; turns a profile's `mass` off, and no cache holds
    more."""
    min_keep: int | None = None
    """Floor of the kept count, in tokens."""
    page_budget: int | None = None
    """DELTA page budget K, recency included."""
    recency_pages: int | None = None
    """DELTA recency pages L."""
    protect: tuple[TokenRange, ...] = ()
    """Prompt tokens that are kept whatever their scores; they count."""
    observation_window: int | None = None
    """W, in tokens."""
    mass: float | None = None
    """Share of the attention mass that the chosen tokens hold, in (0, 1]; sets the kept count, of
    the caches too."""
    min_rate: float | None = None
    """Least keep rate that `mass` may come to."""
    max_rate: float | None = None
    """Largest keep rate that `mass` may come to."""

    @property
    def changes_pruning(self) -> bool:
        """Whether anything but the profile decides which tokens are kept."""
        return bool(self.protect) or any(
            value is not None
            for value in (
                self.keep_rate,
                self.min_keep,
                self.observation_window,
                self.mass,
                self.min_rate,
                self.max_rate,
            )
        )

    def check_pruning(self) -> None:
        """Checks the overrides of pruning, as far as they can be without the prompt.

        Raises:
            InvalidRequestError: one is out of range or contradicts another; `param` names it.
        """
        for name in ("keep_rate", "mass", "min_rate", "max_rate"):
            _check_share(getattr(self, name), name=name)
        if self.min_keep is not None and self.min_keep < 0:
            raise InvalidRequestError(
                f"min_keep {self.min_keep} is negative: it is a count of tokens; give 0 or more",
                param="tandem.min_keep",
            )
        if self.mass is not None and self.keep_rate is not None:
            raise InvalidRequestError(
                "keep_rate and mass were both sent, and each sets the kept count; leave one out",
                param="tandem.mass",
            )
        if (self.min_rate or 0.0) > (self.max_rate or 1.0):
            raise InvalidRequestError(
                f"min_rate {self.min_rate} is above max_rate {self.max_rate}; swap them",
                param="tandem.min_rate",
            )
        window = self.observation_window
        if window is not None and not 1 <= window <= MAX_OBSERVATION_WINDOW:
            raise InvalidRequestError(
                f"the observation window is {window} tokens: it is how many of the prompt's last "
                f"tokens judge the others; give 1 to {MAX_OBSERVATION_WINDOW}",
                param="tandem.window",
            )
        _check_ranges(self.protect)


def _check_share(value: float | None, *, name: str) -> None:
    if value is not None and not (math.isfinite(value) and 0.0 < value <= 1.0):
        raise InvalidRequestError(
            f"{name} {value} is out of range: it is a share; give a number above 0 and up to 1",
            param=f"tandem.{name}",
        )


def _check_ranges(ranges: tuple[TokenRange, ...]) -> None:
    if len(ranges) > MAX_PROTECTED_RANGES:
        raise InvalidRequestError(
            f"{len(ranges)} ranges are protected, more than {MAX_PROTECTED_RANGES}; join some",
            param="tandem.protect",
        )
    for tokens in ranges:
        if not 0 <= tokens.start < tokens.end:
            raise InvalidRequestError(
                f"the protected range [{tokens.start}, {tokens.end}) is empty or begins before the "
                "prompt; give [start, end] with 0 <= start < end, end not included",
                param="tandem.protect",
            )
