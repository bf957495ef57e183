"""DELTA with each of its options reads what the slow twin reads, in every layout, step by step."""

import pytest

from decode_service.sparsity.base import RowFacts
from decode_service.sparsity.delta import DeltaPolicy
from shared.types.methods import PageHeads, PageLayout, SparsityParams
from tests.reference.delta_options_slow import SlowOptions
from tests.support.policy_rows import KV_HEADS, LAYERS, MadeUpRow, make_facts

STEPS = 24
OPTIONS = {
    "plain": {},
    "segment": {"layout": PageLayout.SEGMENT},
    "kv-heads": {"heads": PageHeads.KV_HEAD},
    "refresh": {"refresh_every": 3},
    "refresh-kv-heads": {"refresh_every": 5, "heads": PageHeads.KV_HEAD},
    "mass-little": {"mass": 0.4},
    "mass-much": {"mass": 0.75},
    "mass-kv-heads": {"mass": 0.55, "heads": PageHeads.KV_HEAD},
    "mass-refresh-segment": {
        "mass": 0.55,
        "refresh_every": 4,
        "layout": PageLayout.SEGMENT,
    },
    "all": {
        "mass": 0.6,
        "refresh_every": 2,
        "layout": PageLayout.SEGMENT,
        "heads": PageHeads.KV_HEAD,
    },
}


def twin_of(params: SparsityParams, facts: RowFacts) -> SlowOptions:
    positions = []
    for layer in range(facts.num_layers):
        layout = facts.layout_of(layer)
        if layout.positions_RN is None:
            rows = [list(range(layout.slots))]
        else:
            rows = layout.positions_RN.tolist()
        positions.append(rows * (KV_HEADS // len(rows)))
    return SlowOptions(
        full_layers=params.full_layers,
        budget=params.page_budget,
        recency=params.recency_pages,
        prompt_tokens=facts.prompt_tokens,
        positions=positions,
        segment=params.layout is PageLayout.SEGMENT,
        kv_heads_apart=params.heads is PageHeads.KV_HEAD,
        refresh_every=params.refresh_every,
        mass=params.mass,
    )


@pytest.mark.parametrize("kind", ["identity", "shared", "layer", "head"])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize(
    ("prompt_tokens", "kept", "budget"), [(230, 170, 9), (230, 125, 9), (150, 110, 5)]
)
def test_delta_reads_what_its_twin_reads(
    kind: str, name: str, prompt_tokens: int, kept: int, budget: int
) -> None:
    params = SparsityParams(
        full_layers=(0, 1, 4),
        page_budget=budget,
        recency_pages=2,
        **OPTIONS[name],  # type: ignore[arg-type]
    )
    row = MadeUpRow(make_facts(kind, prompt_tokens=prompt_tokens, kept=kept), steps=STEPS)
    state = DeltaPolicy(params, num_layers=LAYERS).begin(row.facts)
    twin = twin_of(params, row.facts)
    for generated in row.lengths:
        whole = [row.probs(layer, generated=generated).double().tolist() for layer in range(LAYERS)]
        wanted = twin.step(generated, whole)
        got = [
            None if read.selection is None else read.selection.units_RU.tolist()
            for read in row.step(state, generated=generated)
        ]
        assert got == wanted
