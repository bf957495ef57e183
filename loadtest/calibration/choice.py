"""Chooses a profile's parameters from what a sweep measured: rules only, no model.

Shapes: Y layers, W windows, P pools, A forms of aggregation, M layer counts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean

from loadtest.calibration.answers import Agreement
from loadtest.quality.depth_grid import GridScores, SweepGrid
from shared.errors import ConfigError
from shared.types.methods import Aggregation

_DIGITS = 4
_SAME_ALONE = frozenset({Aggregation.ZSUM_MAX, Aggregation.RANK_MAX})
"""Forms that order the tokens of one layer as `sum_max` does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to rank at one depth."""

    pruning_layer: int
    """lp."""
    layer_count: int
    """n."""
    window: int
    """W."""
    pool: int
    """Width of the pool."""
    aggregation: Aggregation
    """How the layers are combined."""
    rho: float
    """Spearman's rho with the oracle, mean over prompts."""
    coverage: float | None
    """Share of the needles' tokens kept; None without needles."""
    collapsed: int
    """Collapsed layers among those aggregated."""

    @property
    def layers(self) -> range:
        """The aggregated layers."""
        return range(self.pruning_layer - self.layer_count + 1, self.pruning_layer + 1)

    def quality(self, agreement: Agreement | None = None) -> float:
        """Mean of the measures that there are: rho, coverage, first tokens, answers."""
        measures = [self.rho, self.coverage]
        if agreement is not None:
            measures += [agreement.first_token, agreement.answers]
        return round(fmean(value for value in measures if value is not None), _DIGITS)


def token_layer_saving(pruning_layer: int, *, num_layers: int, keep_rate: float) -> float:
    """Share of a prompt's token-layers that pruning after lp leaves out: (N-1-lp)/N (1-r)."""
    return (num_layers - 1 - pruning_layer) / num_layers * (1.0 - keep_rate)


def allowed_depths(*, num_layers: int, keep_rate: float, saving_target: float) -> range:
    """The pruning layers that save enough, from 0 to the deepest.

    Raises:
        ConfigError: none does.
    """
    count = sum(
        token_layer_saving(lp, num_layers=num_layers, keep_rate=keep_rate) >= saving_target
        for lp in range(num_layers)
    )
    if count == 0:
        most = token_layer_saving(0, num_layers=num_layers, keep_rate=keep_rate)
        raise ConfigError(
            f"no depth saves {saving_target:g} of the token-layers when {keep_rate:g} of the "
            f"tokens is kept: layer 0 saves {most:.3f}; lower the saving target or the keep rate"
        )
    return range(count)


def candidates_at(
    pruning_layer: int, *, scores: GridScores, grid: SweepGrid, collapsed: Sequence[int]
) -> list[Candidate]:
    """All candidates of one depth, best first: no collapsed layer, quality, then the cheapest."""
    found = _candidates(pruning_layer, scores=scores, grid=grid, collapsed=collapsed)
    return sorted(found, key=lambda one: (one.collapsed, -one.quality(), *_cost(one)))


def best_of(candidates: Sequence[Candidate], agreements: Sequence[Agreement | None]) -> int:
    """Index of the best candidate; of equals the shallowest, then the cheapest, then the first."""

    def rank(index: int) -> tuple[float, ...]:
        one = candidates[index]
        return (
            one.collapsed,
            -one.quality(agreements[index]),
            one.pruning_layer,
            *_cost(one),
            index,
        )

    return min(range(len(candidates)), key=rank)


def _cost(one: Candidate) -> tuple[int, int, int]:
    return one.layer_count, one.window, one.pool


def _candidates(
    pruning_layer: int, *, scores: GridScores, grid: SweepGrid, collapsed: Sequence[int]
) -> Iterator[Candidate]:
    axes = (
        enumerate(grid.windows),
        enumerate(grid.pools),
        enumerate(grid.aggregations),
        enumerate(grid.layer_counts),
    )
    for (w, window), (p, pool), (a, form), (m, layer_count) in product(*axes):
        alone = layer_count == 1 and form in _SAME_ALONE
        if alone or layer_count > pruning_layer + 1:
            continue
        place = (w, p, a, m, pruning_layer)
        layers = range(pruning_layer - layer_count + 1, pruning_layer + 1)
        coverage = scores.coverage_WPAMY
        yield Candidate(
            pruning_layer=pruning_layer,
            layer_count=layer_count,
            window=window,
            pool=pool,
            aggregation=form,
            rho=float(scores.rho_WPAMY[place]),
            coverage=None if coverage is None else float(coverage[place]),
            collapsed=sum(layer in layers for layer in collapsed),
        )
