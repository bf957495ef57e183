"""Which page policy an answer was decoded with, for reports."""

from dataclasses import dataclass

from shared.types.methods import SparsityParams
from shared.types.page_policies import PagePolicyName


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSummary:
    """A policy and the parameters that it reads; None: it does not read that one.

    Names are plain text: the report of a newer worker must not fail an older reader.
    """

    policy: str
    """Name of the page policy."""
    page_budget: int | None = None
    """K, recency included; of `mass` the most that it may come to."""
    recency_pages: int | None = None
    """L last pages, always read."""
    layout: str | None = None
    """board or segment."""
    heads: str | None = None
    """shared or kv_head."""
    refresh_every: int | None = None
    """Steps between two choices."""
    mass: float | None = None
    """Share of the score's mass that the pages hold; None also when K alone decides."""

    @property
    def text(self) -> str:
        """Name, K and L in a few words."""
        numbers = {"K": self.page_budget, "L": self.recency_pages}
        shown = [f"{name} {value}" for name, value in numbers.items() if value is not None]
        return ", ".join([self.policy, *shown])

    def to_json(self) -> dict[str, object]:
        """The `pages` object of a response."""
        return {
            "policy": self.policy,
            "page_budget": self.page_budget,
            "recency_pages": self.recency_pages,
            "layout": self.layout,
            "heads": self.heads,
            "refresh": self.refresh_every,
            "mass": self.mass,
        }


def summary_of(params: SparsityParams | None) -> PageSummary:
    """The summary of a request's effective parameters; None is dense decoding."""
    if params is None:
        return PageSummary(policy=PagePolicyName.DENSE.value)
    reads = PagePolicyName(params.policy).reads
    return PageSummary(
        policy=params.policy,
        page_budget=params.page_budget if "page_budget" in reads else None,
        recency_pages=params.recency_pages if "recency_pages" in reads else None,
        layout=params.layout.value if "layout" in reads else None,
        heads=params.heads.value if "heads" in reads else None,
        refresh_every=params.refresh_every if "refresh_every" in reads else None,
        mass=params.mass if "mass" in reads else None,
    )
