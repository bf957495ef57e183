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
        """Fields of `SparsityParams`, the policy's name aside, that it looks at."""
        return _READS[self]

    @property
    def min_layers(self) -> int:
        """Decoder layers that a model must have for it."""
        return _MIN_LAYERS.get(self, 1)


_LAYERS_AND_BUDGET = frozenset({"full_layers", "page_budget"})
_OPTIONS_OF_DELTA = frozenset({"recency_pages", "layout", "heads", "refresh_every", "mass"})
_READS: dict[PagePolicyName, frozenset[str]] = {
    PagePolicyName.DENSE: frozenset(),
    PagePolicyName.DELTA: _LAYERS_AND_BUDGET | _OPTIONS_OF_DELTA,
    PagePolicyName.QUEST: frozenset({"page_budget"}),
    PagePolicyName.QUEST_SHARED: frozenset({"page_budget"}),
    PagePolicyName.RAAS: frozenset({"page_budget", "recency_pages"}),
    PagePolicyName.TIDAL: frozenset({"page_budget", "correction_layer"}),
    PagePolicyName.LESS_IS_MORE: frozenset({"page_budget", "correction_layer", "recent_share"}),
    PagePolicyName.H2O: frozenset({"page_budget", "recent_share"}),
    PagePolicyName.STREAMING: frozenset({"page_budget"}),
    PagePolicyName.RECENCY: _LAYERS_AND_BUDGET,
    PagePolicyName.RANDOM: _LAYERS_AND_BUDGET | {"recency_pages", "seed"},
    PagePolicyName.ORACLE_TOPK: _LAYERS_AND_BUDGET | {"recency_pages"},
}


_MIN_LAYERS = {PagePolicyName.TIDAL: 5, PagePolicyName.LESS_IS_MORE: 5}
"""These choose at layer 2 and again at a later one that is not the last."""


def policy_names() -> str:
    """All names, for error texts."""
    return ", ".join(PagePolicyName)
