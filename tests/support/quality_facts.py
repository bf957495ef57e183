"""Made-up results of an evaluation, for whatever reads them."""

from dataclasses import replace
from typing import Any

from loadtest.quality.store import CorrelationCurve, Fact, Run, Timing, Trial

RUN = Run(
    run=0,
    command="tandem eval ranking --seeds 2",
    commit="0123456789abcdef",
    started="2026-01-02T03:04:05+00:00",
    hardware="one imaginary GPU",
    software="Python 3.11",
    model="tiny",
    model_hash="beef",
    dtype="float32",
    profile="tiny",
    pruning={"ranker": "claa", "pruning_layer": 3, "aggregation_window": 2},
)
TRIAL = Trial(
    run=0,
    part="mixture",
    task="niah_noise_1key",
    protocol="included",
    length=2048,
    depth=0.5,
    seed=0,
    arm="full",
    rate=1.0,
    prompt_tokens=2040,
    kept_tokens=2040,
    score=1.0,
    first_token_kl=0.0,
    spearman=None,
)
CORRELATION = CorrelationCurve(
    run=0,
    task="single_1",
    length=2048,
    seed=0,
    oracle="softmax, pool 7",
    series="layer",
    rho=[0.1, 0.2, 0.5, 0.4],
    coverage=[0.1, 0.9, 0.2, 1.0],
)


def trials(arm: str, scores: list[float], *, rate: float = 0.2, **changes: Any) -> list[Trial]:
    """One trial a score, seeds 0, 1, ..; keyword arguments replace fields."""
    base = replace(TRIAL, arm=arm, rate=rate, kept_tokens=400, spearman=0.5, **changes)
    return [replace(base, seed=seed, score=score) for seed, score in enumerate(scores)]


def timing(arm: str, ratio: float, *, rate: float = 0.2, length: int = 4096) -> Timing:
    """An arm that took `ratio` seconds where full took one."""
    return Timing(
        run=0, length=length, arm=arm, rate=rate, seconds=[ratio] * 3, ratio_to_full=[ratio] * 3
    )


def study_facts() -> list[Fact]:
    """A small study: claa at two rates, a faster method behind, an equal one ahead, controls."""
    facts: list[Fact] = [RUN, CORRELATION, replace(CORRELATION, series="rank_max, n=4")]
    for part in ("mixture", "needle", "ruler"):
        facts += trials("full", [1, 1, 1, 1, 0], rate=1.0, part=part)
        facts += trials("claa", [1, 1, 1, 0, 0], part=part)
        facts += trials("claa", [1, 1, 0, 0, 0], rate=0.1, part=part)
        facts += trials("fastkv", [1, 0, 0, 0, 0], part=part)
        facts += trials("snapkv", [1, 1, 1, 1, 0], part=part)
        facts += trials("random", [0, 0, 0, 0, 0], part=part)
        facts += trials("recency", [0, 0, 0, 0, 0], part=part)
    facts += trials("claa+floor=256", [1, 1], length=1024)
    facts += trials("full", [1, 1], rate=1.0, length=1024)
    facts += trials("full", [1, 1, 1], rate=1.0, part="ablation")
    facts += trials("lp=2", [0, 0, 0], part="ablation")
    facts += trials("lp=10", [1, 1, 0], part="ablation")
    facts += trials("agg=rank_max", [1, 1, 0], part="ablation")
    facts += trials("claa", [1, 0], part="needle", protocol="excluded")
    facts += [timing("full", 1.0, rate=1.0), timing("claa", 0.6), timing("claa", 0.5, rate=0.1)]
    facts += [timing("fastkv", 0.6), timing("snapkv", 0.61), timing("snapkv", 9.0, length=128)]
    return facts
