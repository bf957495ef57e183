"""Ablations of DELTA: one thing changed at a time, over a whole prefill or a pruned one."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product

from loadtest.sparsity.arms import Arm, at_budget
from loadtest.sparsity.layer_evidence import FIRST_DELTA, WARM_LAYERS
from loadtest.sparsity.records import PRUNED, WHOLE
from loadtest.sparsity.settings import StudySettings
from shared.types.methods import KvSelect, PageHeads, PageLayout, SparsityParams

EXTRA_DELTAS = (2, 4, 8, 12, 16, 22)
"""Δ-layers that a pruned prompt can afford: most of them hold few slots there."""
DELTA_COUNTS = (1, 2, 3, 5, 8)
PAGES = (8, 16, 32, 64, 128)
RECENT = (1, 2, 4, 8, 16)
MASSES = (0.9, 0.95, 0.99)
REFRESHES = (1, 2, 4)
MASS_PAGES = 128
"""Most pages that a share of the mass may come to; a row of no more pages reads them all."""


def whole_ablations(base: SparsityParams, settings: StudySettings, *, num_layers: int) -> list[Arm]:
    """Arms over a whole prefill."""
    usual = at_budget(replace(base, policy="delta"), settings.ablation_pages)
    found = [
        *_sets(usual, settings.full_layers, num_layers=num_layers, prefill=WHOLE),
        *(_arm("pages", f"K={pages}", at_budget(usual, pages)) for pages in PAGES),
        *_recency(usual, settings.budgets),
    ]
    for pages in sorted({settings.pruned_pages, settings.ablation_pages}):
        sized = at_budget(usual, pages)
        found += [
            _arm("heads", f"heads={heads.value}", replace(sized, heads=heads))
            for heads in PageHeads
        ]
        found += [
            _arm("refresh", f"refresh={every}", replace(sized, refresh_every=every))
            for every in REFRESHES
        ]
    most = replace(usual, page_budget=max(MASS_PAGES, usual.recency_pages + 2))
    found += [_arm("mass", f"mass={mass}", replace(most, mass=mass)) for mass in MASSES]
    return _distinct(found)


def pruned_ablations(
    base: SparsityParams, settings: StudySettings, *, num_layers: int
) -> list[Arm]:
    """Arms over pruned prefills: layout modes by kv_select, and more Δ-layers."""
    usual = at_budget(replace(base, policy="delta"), settings.pruned_pages)
    layouts = [
        _arm(
            "layout",
            f"layout={layout.value}",
            replace(usual, layout=layout),
            prefill=f"{PRUNED}/{select.value}",
        )
        for select, layout in product(KvSelect, PageLayout)
    ]
    sets = [base.full_layers, _with_deltas(EXTRA_DELTAS, num_layers), _first_dense(base)]
    extra = _of_sets(usual, [*sets, *settings.full_layers], "extra", prefill=PRUNED)
    return _distinct([*layouts, *_fitting(extra, num_layers)])


def delta_sets(base: SparsityParams, *, num_layers: int) -> dict[str, list[tuple[int, ...]]]:
    """Sets F by group: how many Δ-layers, what is dense first, and others for the frontier."""
    own = base.full_layers
    counts = [_with_deltas(_spread(count, num_layers), num_layers) for count in DELTA_COUNTS]
    firsts = [own, _first_dense(base), tuple(layer for layer in own if layer not in {1, 2})]
    others = [
        _with_deltas((*own[3:], num_layers // 4), num_layers),
        _with_deltas((*own[3:], num_layers * 5 // 8), num_layers),
        _with_deltas((*own[3:], num_layers // 4, num_layers * 5 // 8), num_layers),
        _with_deltas(range(FIRST_DELTA, num_layers, 3), num_layers),
        _with_deltas(range(FIRST_DELTA, num_layers, 2), num_layers),
    ]
    return {"deltas": [own, *counts], "first-dense": firsts, "frontier": others}


def name_of(full_layers: Iterable[int]) -> str:
    """Label of a set F."""
    return "F=" + ",".join(map(str, full_layers))


def _sets(
    usual: SparsityParams,
    further: Sequence[tuple[int, ...]],
    *,
    num_layers: int,
    prefill: str,
) -> list[Arm]:
    groups = delta_sets(usual, num_layers=num_layers)
    groups["frontier"] = [*groups["frontier"], *further]
    found = [
        arm
        for group, sets in groups.items()
        for arm in _of_sets(usual, sets, group, prefill=prefill)
    ]
    return _fitting(found, num_layers)


def _of_sets(
    usual: SparsityParams, sets: Iterable[tuple[int, ...]], group: str, *, prefill: str
) -> list[Arm]:
    return [
        _arm(group, name_of(full), replace(usual, full_layers=full), prefill=prefill)
        for full in sets
    ]


def _fitting(arms: Iterable[Arm], num_layers: int) -> list[Arm]:
    """Arms whose set leaves a layer sparse, all of it within the model."""
    return [
        arm
        for arm in arms
        if arm.params is not None
        and arm.params.full_layers[-1] < num_layers
        and len(arm.params.full_layers) < num_layers
    ]


def _recency(usual: SparsityParams, budgets: Sequence[int]) -> list[Arm]:
    """How much of each budget is recent."""
    return [
        _arm("recency", f"L={recent}", replace(usual, page_budget=pages, recency_pages=recent))
        for pages in budgets
        for recent in sorted({*RECENT, at_budget(usual, pages).recency_pages})
        if recent <= min(pages - 2, pages // 2)
    ]


def _first_dense(base: SparsityParams) -> tuple[int, ...]:
    """Only layer 0 plans nothing; the first Δ-layer is 1."""
    return (0, 1, *(layer for layer in base.full_layers if layer > FIRST_DELTA))


def _with_deltas(deltas: Iterable[int], num_layers: int) -> tuple[int, ...]:
    """Layers 0 and 1, the first Δ-layer, and others where they are not the last layer."""
    inside = {layer for layer in deltas if layer < num_layers - 1}
    return tuple(sorted({*WARM_LAYERS, FIRST_DELTA, *inside}))


def _spread(count: int, num_layers: int) -> list[int]:
    """Layers at even distances, from the first Δ-layer on."""
    return [FIRST_DELTA + step * (num_layers - FIRST_DELTA) // count for step in range(count)]


def _arm(group: str, name: str, params: SparsityParams, *, prefill: str = WHOLE) -> Arm:
    return Arm(name=name, params=params, prefill=prefill, group=group)


def _distinct(arms: Iterable[Arm]) -> list[Arm]:
    """The first of arms of equal name within a group."""
    return list({arm.identity: arm for arm in reversed(list(arms))}.values())[::-1]
