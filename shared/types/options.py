"""Per-request overrides of the model profile."""

import math
from dataclasses import dataclass
from enum import Enum

from shared.errors import InvalidRequestError
from shared.types.methods import PageHeads, PageLayout
from shared.types.page_policies import PagePolicyName

MAX_PROTECTED_RANGES = 64
"""Ranges that one request may protect."""

PAGE_FIELDS = {
    "page_budget": "page_budget",
    "recency_pages": "recency_pages",
    "page_layout": "layout",
    "page_heads": "heads",
    "page_refresh": "refresh_every",
    "page_mass": "mass",
}
"""Overrides of page selection, and the field of `SparsityParams` that each one sets."""

_LEAST_COUNTS = {"min_keep": 0, "page_budget": 0, "recency_pages": 0, "page_refresh": 1}
"""Fields that count tokens, pages or steps, and the smallest value of each."""

MAX_COUNT = 2**32 - 1
"""Largest count of tokens, pages or steps that a message between workers can carry."""
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
    page_policy: PagePolicyName | None = None
    """What chooses the pages."""
    page_budget: int | None = None
    """Page budget K, recency included."""
    recency_pages: int | None = None
    """Recency pages L."""
    page_layout: PageLayout | None = None
    """How a choice serves layers that hold other tokens."""
    page_heads: PageHeads | None = None
    """Whether there is one choice, or one a KV head."""
    page_refresh: int | None = None
    """Steps between two choices, at least 1."""
    page_mass: float | None = None
    """Share of the score's mass that the chosen pages hold, in (0, 1]; K is the most they are."""
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
    trace: bool = False
    """Report which tokens were kept and which pages were read; changes no answer."""
    replay: bool = False
    """The answer may go on at another pair when its decode worker dies in mid-stream; for the
    gateway, and only where its operator allows it."""

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

    def check_pages(self, policy: PagePolicyName | None = None) -> None:
        """Checks the overrides of page selection, as far as they can be without the profile.

        Args:
            policy: the policy that will run; None: the request's own, if it names one.

        Raises:
            InvalidRequestError: one is out of range, or the policy does not look at it; `param`
                names it.
        """
        self._check_counts()
        _check_share(self.page_mass, name="page_mass")
        policy = policy or self.page_policy
        if policy is None:
            return
        for name, field in PAGE_FIELDS.items():
            if getattr(self, name) is not None and field not in policy.reads:
                others = ", ".join(other for other in PagePolicyName if field in other.reads)
                raise InvalidRequestError(
                    f"{name} was sent, but the page policy {policy.value} does not use it; leave "
                    f"it out, or set page_policy to one that does: {others}",
                    param=f"tandem.{name}",
                )

    def check_pruning(self) -> None:
        """Checks the overrides of pruning, as far as they can be without the prompt.

        Raises:
            InvalidRequestError: one is out of range or contradicts another; `param` names it.
        """
        self._check_counts()
        for name in ("keep_rate", "mass", "min_rate", "max_rate"):
            _check_share(getattr(self, name), name=name)
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

    def _check_counts(self) -> None:
        """A count that no message between workers could carry is no count of anything."""
        for name, least in _LEAST_COUNTS.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= MAX_COUNT:
                raise InvalidRequestError(
                    f"{name} {value} is out of range: it counts tokens, pages or steps; give "
                    f"{least} to {MAX_COUNT}, or leave it out",
                    param=f"tandem.{name}",
                )


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
        if not 0 <= tokens.start < tokens.end <= MAX_COUNT:
            raise InvalidRequestError(
                f"the protected range [{tokens.start}, {tokens.end}) is empty, begins before the "
                "prompt or ends beyond any; give [start, end] with 0 <= start < end, end not "
                "included",
                param="tandem.protect",
            )
