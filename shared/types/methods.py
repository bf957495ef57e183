"""Parameters of the two methods, as a profile states them and a request may override them."""

from dataclasses import dataclass
from enum import Enum

from shared.errors import ConfigError
from shared.types.page_policies import PagePolicyName, policy_names


class Aggregation(Enum):
    """How layer scores become one pruning score."""

    SUM_MAX = "sum_max"
    ZSUM_MAX = "zsum_max"
    ZHEAD_MAX = "zhead_max"
    RANK_MAX = "rank_max"


class KvSelect(Enum):
    """Which positions the cache of layers m..lp keeps."""

    HEAD = "head"
    LAYER = "layer"
    SHARED = "shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningParams:
    """Which method ranks a prompt's tokens, and its parameters."""

    pruning_layer: int
    """lp, 0-based: the sequence is pruned on its output."""
    keep_rate: float = 0.2
    """r in (0, 1]; 1 keeps all."""
    aggregation_window: int = 4
    """n layers, lp-n+1..lp, feed the pruning score."""
    deferred_layers: int = 4
    """m: layers 0..m-1 keep their whole KV."""
    observation_window: int = 8
    """W last prompt tokens whose queries score the prompt; always kept."""
    pool_kernel: int = 7
    """Width of the average pool over positions, odd."""
    aggregation: Aggregation = Aggregation.RANK_MAX
    """How layers are combined."""
    kv_select: KvSelect = KvSelect.SHARED
    """Positions per KV head, per layer, or one set for layers m..N-1."""
    min_keep: int = 0
    """Floor of the kept count, in tokens."""
    protect_first: bool = True
    """Token 0 is kept in every set, in place of the lowest-ranked."""
    bypass_below: int = 0
    """Prompts shorter than this many tokens are not pruned."""
    ranker: str = "claa"
    """Name of the ranking method."""
    kv_rate: float | None = None
    """Share of the prompt that the cache of every pruned layer holds, in (0, 1]; None: r."""
    seed: int = 0
    """What the `random` method draws from."""
    mass: float | None = None
    """Share of the scores' mass that the chosen tokens hold, in (0, 1]; sets the kept count, within
    the bounds below and in place of r. None: r does."""
    min_rate: float = 0.05
    """Least keep rate that `mass` may come to."""
    max_rate: float = 0.5
    """Largest keep rate that `mass` may come to."""

    def __post_init__(self) -> None:
        checks = (
            (0.0 < self.keep_rate <= 1.0, "keep_rate must be in (0, 1]"),
            (self.pruning_layer >= 0, "pruning_layer must not be negative"),
            (self.aggregation_window >= 1, "aggregation_window must be at least 1"),
            (self.deferred_layers >= 0, "deferred_layers must not be negative"),
            (self.observation_window >= 1, "observation_window must be at least 1"),
            (self.pool_kernel % 2 == 1 and self.pool_kernel > 0, "pool_kernel must be odd"),
            (self.min_keep >= 0, "min_keep must not be negative"),
            (self.ranker != "", "ranker must name a method"),
            (self.kv_rate is None or 0.0 < self.kv_rate <= 1.0, "kv_rate must be in (0, 1]"),
            (self.seed >= 0, "seed must not be negative"),
            (self.mass is None or 0.0 < self.mass <= 1.0, "mass must be in (0, 1]"),
            (self.mass is None or self.kv_rate is None, "mass sets the caches too: no kv_rate"),
            (
                0.0 < self.min_rate <= self.max_rate <= 1.0,
                "0 < min_rate <= max_rate <= 1 must hold",
            ),
        )
        for ok, text in checks:
            if not ok:
                raise ConfigError(f"pruning parameters: {text}")

    def kept_count(self, prompt_tokens: int) -> int:
        """min(L, max(floor(r L), W + 1, min_keep)); no rounding to pages.

        With `mass`, the most that it may come to: r is max_rate, and one token at least is dropped
        where min_rate would drop some.
        """
        if self.mass is None:
            return self._count(prompt_tokens, self.keep_rate)
        least = self.least_count(prompt_tokens)
        return max(least, min(self._count(prompt_tokens, self.max_rate), prompt_tokens - 1))

    def least_count(self, prompt_tokens: int) -> int:
        """The least kept count that `mass` may come to: that of min_rate; without it, the count."""
        rate = self.keep_rate if self.mass is None else self.min_rate
        return self._count(prompt_tokens, rate)

    def kv_count(self, prompt_tokens: int) -> int:
        """KV entries of a layer that holds a choice of the prompt: the same with kv_rate."""
        if self.kv_rate is None:
            return self.kept_count(prompt_tokens)
        return self._count(prompt_tokens, self.kv_rate)

    def _count(self, prompt_tokens: int, rate: float) -> int:
        if rate >= 1.0:
            return prompt_tokens
        wanted = max(int(prompt_tokens * rate), self.observation_window + 1, self.min_keep)
        return min(prompt_tokens, wanted)


FIRST_CHOOSING_LAYER = 2
"""Layer at which `tidal` and `less_is_more` choose first; the layers before it read everything."""


class PageLayout(Enum):
    """How a choice made in one slot layout serves the layers of another."""

    BOARD = "board"
    """Scores are carried over by position."""
    SEGMENT = "segment"
    """They are not: a layer whose layout differs from the one before it chooses anew."""


class PageHeads(Enum):
    """For whom a Δ-layer's choice is made."""

    SHARED = "shared"
    """One choice for all heads."""
    KV_HEAD = "kv_head"
    """One choice a KV head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparsityParams:
    """Which page policy chooses what decode layers read, and its parameters."""

    full_layers: tuple[int, ...]
    """F, ascending. A layer of F whose successor is not in F is a Δ-layer; the model's last layer
    never plans."""
    page_budget: int = 16
    """K pages a row and layer, recency included; policies that choose slots read 16 K of them."""
    recency_pages: int = 4
    """L last pages, always read."""
    policy: str = "delta"
    """Name of the page policy."""
    layout: PageLayout = PageLayout.BOARD
    """How `delta` serves layers that hold other tokens than its Δ-layer."""
    heads: PageHeads = PageHeads.SHARED
    """Whether `delta` chooses once, or once a KV head."""
    refresh_every: int = 1
    """Steps between two choices of `delta`; in between the recent pages alone move on."""
    mass: float | None = None
    """Share of the score's mass, in (0, 1], that `delta`'s pages hold: K is then the most they may
    be. None: always K."""
    correction_layer: int | None = None
    """Second choosing layer of `tidal` and `less_is_more`; None: at 13/32 of the depth."""
    recent_share: float = 0.25
    """Share of the budget that `less_is_more` and `h2o` keep for the last slots."""
    seed: int = 0
    """What `random` draws from."""

    def __post_init__(self) -> None:
        if not self.full_layers or sorted(set(self.full_layers)) != list(self.full_layers):
            raise ConfigError("full_layers must be a non-empty ascending list without repeats")
        if self.full_layers[0] != 0:
            raise ConfigError(
                "full_layers must begin with layer 0: "
                "the first sparse layer needs a Δ-layer before it"
            )
        if self.recency_pages < 1:
            raise ConfigError("recency_pages must be at least 1: the last page is always read")
        if self.page_budget < self.recency_pages + 2:
            raise ConfigError(
                f"page_budget {self.page_budget} is below recency_pages + 2 "
                f"= {self.recency_pages + 2}: "
                "page 0, the recent pages and one chosen page must fit"
            )
        checks = (
            (
                self.policy in set(PagePolicyName),
                f"policy {self.policy!r} is unknown; known: {policy_names()}",
            ),
            (self.refresh_every >= 1, "refresh_every must be at least 1"),
            (self.mass is None or 0.0 < self.mass <= 1.0, "mass must be in (0, 1]"),
            (
                self.correction_layer is None or self.correction_layer > FIRST_CHOOSING_LAYER,
                "correction_layer must be at least 3: layer 2 chooses first",
            ),
            (0.0 < self.recent_share < 1.0, "recent_share must be in (0, 1)"),
            (self.seed >= 0, "seed must not be negative"),
        )
        for ok, text in checks:
            if not ok:
                raise ConfigError(f"page selection: {text}")
