"""What single layers and aggregated layers are worth: agreement with the oracle, needles kept.

Rank correlation is taken over all positions, nearly all of which no answer depends on; whether the
few that matter are among the chosen ones shows where a layer collapses.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from types import MappingProxyType
from typing import Any

from loadtest.quality.collapse import collapsed_layers
from loadtest.quality.depth_grid import GridScores, SweepGrid, score_grid
from loadtest.quality.oracle import OracleSwitches, ask_prompt, oracle_scores
from loadtest.quality.runner import FullRead, Setup
from loadtest.quality.store import CorrelationCurve, Fact, Run
from shared.types.methods import Aggregation

ORACLES: Mapping[str, OracleSwitches] = MappingProxyType(
    {
        "softmax, pool 7": OracleSwitches(),
        "raw logits, pool 7": OracleSwitches(softmax=False),
    }
)
"""Rank correlation depends on these switches, so both ways are shown."""
SINGLE = "layer"
"""Series of single layers."""


def correlation_curves(setup: Setup, full: FullRead, *, run: int) -> list[CorrelationCurve]:
    """One curve over layers for each oracle and each way to use the layers' scores."""
    sample, base = full.sample, replace(setup.base, min_keep=0)
    asked = ask_prompt(
        setup.model,
        full.prompt,
        token_ids=sample.prompt_ids,
        answer_ids=full.answer_ids,
        window=base.observation_window,
    )
    grid = SweepGrid(
        windows=(base.observation_window,),
        pools=(base.pool_kernel,),
        layer_counts=(1, base.aggregation_window),
    )
    curves = []
    for oracle, switches in ORACLES.items():
        scores = score_grid(
            asked,
            oracle_scores(asked, switches),
            needles=sample.needle_spans,
            grid=grid,
            params=base,
        )
        curves += [
            CorrelationCurve(
                run=run,
                task=sample.task,
                length=sample.length,
                seed=sample.seed,
                oracle=oracle,
                series=series,
                rho=rho,
                coverage=coverage,
            )
            for series, rho, coverage in _series(scores, grid)
        ]
    return curves


def depth_summary(facts: Sequence[Fact]) -> dict[str, Any] | None:
    """Means over prompts of single layers, which of them collapse, and the profile's window.

    Keys: rho, coverage (None without needles), collapsed, window (the profile's layers). None if
    nothing was measured.
    """
    rows = [
        fact
        for fact in facts
        if isinstance(fact, CorrelationCurve)
        and (fact.series, fact.oracle) == (SINGLE, next(iter(ORACLES)))
    ]
    runs = [fact for fact in facts if isinstance(fact, Run)]
    if not rows or not runs:
        return None
    rho = mean_curve(row.rho for row in rows)
    covered = [row.coverage for row in rows if row.coverage is not None]
    coverage = mean_curve(covered) if covered else None
    lp, n = (int(runs[-1].pruning[key]) for key in ("pruning_layer", "aggregation_window"))
    return {
        "rho": rho,
        "coverage": coverage,
        "collapsed": collapsed_layers(rho, coverage),
        "window": list(range(max(0, lp - n + 1), lp + 1)),
    }


def mean_curve(curves: Iterable[Sequence[float]]) -> list[float]:
    """Mean over prompts, layer by layer; a layer that none scored is NaN."""
    layers = [
        [value for value in layer if not math.isnan(value)] for layer in zip(*curves, strict=True)
    ]
    return [fmean(values) if values else math.nan for values in layers]


def _series(
    scores: GridScores, grid: SweepGrid
) -> list[tuple[str, list[float], list[float] | None]]:
    """Name, rho and coverage of single layers and of each aggregate, by layer."""
    wanted = [(SINGLE, grid.aggregations.index(Aggregation.SUM_MAX), 0)]
    wanted += [
        (f"{form.value}, n={grid.layer_counts[-1]}", index, len(grid.layer_counts) - 1)
        for index, form in enumerate(grid.aggregations)
    ]
    return [
        (
            name,
            scores.rho_WPAMY[0, 0, form, count].tolist(),
            None
            if scores.coverage_WPAMY is None
            else scores.coverage_WPAMY[0, 0, form, count].tolist(),
        )
        for name, form, count in wanted
    ]
