"""The page policies by name, and which parameters each of them reads.

A closed list, so that a gateway or a prefill worker, which have no policy, can refuse a wrong name
before any work is done; the decode service's registry is tested to hold the same names.
"""

from enum import StrEnum


class PagePolicyName(StrEnum):
    """What chooses the KV that decode layers read."""

    DENSE = "dense"
    DELTA = "delta"
    QUEST = "quest"
    QUEST_SHARED = "quest_shared"
    RAAS = "raas"
    TIDAL = "tidal"
    LESS_IS_MORE = "less_is_more"
    H2O = "h2o"
    STREAMING = "streaming"
    RECENCY = "recency"
    RANDOM = "random"
    ORACLE_TOPK = "oracle_topk"

    @property
    def reads(self) -> frozenset[str]:
        """Fields of `SparsityParams`, among those that a request may set, that it looks at."""
        return _READS[self]


_BUDGET = frozenset({"page_budget"})
_BUDGET_AND_RECENCY = _BUDGET | {"recency_pages"}
_READS = {
    PagePolicyName.DENSE: frozenset(),
    PagePolicyName.DELTA: _BUDGET_AND_RECENCY | {"layout", "heads", "refresh_every", "mass"},
    PagePolicyName.QUEST: _BUDGET_AND_RECENCY,
    PagePolicyName.QUEST_SHARED: _BUDGET_AND_RECENCY,
    PagePolicyName.RAAS: _BUDGET_AND_RECENCY,
    PagePolicyName.TIDAL: _BUDGET,
    PagePolicyName.LESS_IS_MORE: _BUDGET,
    PagePolicyName.H2O: _BUDGET,
    PagePolicyName.STREAMING: _BUDGET,
    PagePolicyName.RECENCY: _BUDGET,
    PagePolicyName.RANDOM: _BUDGET_AND_RECENCY,
    PagePolicyName.ORACLE_TOPK: _BUDGET_AND_RECENCY,
}


def policy_names() -> str:
    """All names, for error texts."""
    return ", ".join(PagePolicyName)
