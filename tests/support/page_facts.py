"""Made-up results of a study of page policies, for whatever reads them."""

from dataclasses import replace
from typing import Any

from loadtest.facts import Run
from loadtest.sparsity.records import (
    ArmFact,
    CalibrationFact,
    ForcedFact,
    GenerationFact,
    NeedleFact,
    PageStripFact,
    SparsityFact,
)
from tests.support.quality_facts import RUN as RANKING_RUN

SPARSITY = {"full_layers": [0, 1, 3], "page_budget": 16, "recency_pages": 4, "policy": "delta"}
RUN: Run = replace(RANKING_RUN, command="tandem eval sparse --steps 32", sparsity=SPARSITY)
ARM = ArmFact(
    run=0,
    arm="delta",
    budget=256,
    prefill="whole",
    group="policies",
    policy="delta",
    roles="WDSDSS",
    sparsity=SPARSITY,
)
FORCED = ForcedFact(
    run=0,
    part="teacher",
    text="prose",
    context=1024,
    seed=0,
    arm="delta",
    budget=256,
    prefill="whole",
    group="policies",
    kept=1024,
    steps=32,
    scored=32,
    kl=0.01,
    kl_p95=0.05,
    agreement=0.9375,
    kl_full=0.01,
    agreement_full=0.9375,
    accuracy=0.5,
    dense_accuracy=0.5,
    logprob=-2.0,
    dense_logprob=-1.99,
    attended=1020,
    dense_attended=3000,
    unpruned_attended=3000,
    expected_attended=1000,
    layer_recall=[None, None, 0.5, None, 0.75, 1.0],
    recall_p10=0.4,
    recency_share=0.25,
    churn=0.1,
    seconds=1.0,
    kl_blocks=[0.01, 0.012],
    agreement_blocks=[0.9375, 0.9375],
)
NEEDLE = NeedleFact(
    run=0,
    part="needle",
    task="niah_prose_1key",
    length=1024,
    depth=0.5,
    seed=0,
    arm="delta",
    budget=256,
    prefill="pruned",
    group="policies",
    prompt_tokens=1020,
    kept=256,
    right=True,
    kl=0.01,
    attended=500,
    dense_attended=900,
)
GENERATION = GenerationFact(
    run=0,
    text="prose",
    context=1024,
    seed=0,
    temperature=0.0,
    arm="delta",
    budget=256,
    tokens=300,
    logprob=-1.02,
    logprob_curve=[-1.0, -1.1],
    agreement=0.95,
    kl=0.02,
    eos_at=None,
    diverges_at=17,
    distinct=0.9,
    attended=1000,
    dense_attended=3000,
    token_ids=[1, 2, 3],
)
STRIP = PageStripFact(
    run=0,
    text="prose",
    context=40,
    seed=0,
    temperature=0.0,
    arm="delta",
    budget=256,
    layer=4,
    planner=3,
    steps=[0, 5, 10],
    num_pages=[3, 3, 4],
    pages=[[0, 2], [0, 1, 2], [0, 3]],
    refreshed=[True, False, True],
)
CALIBRATION = CalibrationFact(
    run=0,
    curves={
        "by_layer": {
            "shift": [0.0, 0.1, 0.2, 0.5, 0.1, 0.2],
            "shift_with_sinks": [0.0, 0.01, 0.02, 0.05, 0.01, 0.02],
            "turn": [0.9, 0.1, 0.1, 0.1, 0.1, 0.2],
        },
        "chosen_by": "shift",
        "full_layers": {"recall": [0, 1, 2, 3], "shift": [0, 1, 2, 4]},
        "expected": {
            "set": ["recall", "shift"],
            "recall": [0.8, 0.7],
            "low_recall": [0.6, 0.5],
            "weighted_recall": [0.9, 0.8],
            "kl": [0.02, 0.01],
            "agreement": [0.9, 0.95],
        },
        "recall": {"layer_2": [0.5, 0.6, 0.7], "layer_3": [0.8, 0.9], "layer_4": [0.9]},
        "low_recall": {"layer_2": [0.4, 0.5, 0.6], "layer_3": [0.7, 0.8], "layer_4": [0.8]},
    },
)


def forced(arm: str, *, kl: float, agreement: float = 0.9375, **changes: Any) -> ForcedFact:
    """An arm over the same text, that far from dense."""
    values = {"kl": kl, "kl_full": kl, "kl_blocks": [kl, kl], "agreement": agreement, **changes}
    return replace(FORCED, arm=arm, **values)


def dense(**changes: Any) -> ForcedFact:
    """Dense over the same text."""
    own = {"budget": 0, "group": "policies", "attended": 3000, "expected_attended": 0}
    blank = {"layer_recall": [None] * 6, "recall_p10": None, "recency_share": None, "churn": None}
    return forced("dense", kl=0.0, agreement=1.0, **{**own, **blank, **changes})


def page_facts() -> list[SparsityFact]:
    """A small study with every part: policies, needles, long texts, generations, ablations."""
    facts: list[SparsityFact] = [RUN, ARM, CALIBRATION, dense(), FORCED]
    facts += [forced("quest", kl=0.05), forced("random", kl=0.5, agreement=0.5)]
    facts.append(forced("delta", kl=0.004, budget=512, expected_attended=0))
    for right, arm, prefill, budget in (
        (True, "full", "whole", 0), (True, "dense", "pruned", 0), (True, "delta", "pruned", 256),
        (False, "random", "pruned", 256),
    ):  # fmt: skip
        facts.append(replace(NEEDLE, right=right, arm=arm, prefill=prefill, budget=budget))
    facts += [
        dense(part="long", text="ledger"),
        forced("delta", kl=0.1, part="long", text="ledger"),
    ]
    facts += [replace(GENERATION, arm="dense", budget=0, logprob=-1.0, kl=0.0), GENERATION, STRIP]
    for index, layout in enumerate(("board", "segment")):
        arm, kl = f"layout={layout}", 0.01 * (index + 1)
        facts.append(forced(arm, kl=kl, part="ablation", group="layout", prefill="pruned/shared"))
    facts += [
        forced(f"L={recent}", kl=0.01 / recent, part="ablation", group="recency")
        for recent in (1, 2, 4)
    ]
    return facts
