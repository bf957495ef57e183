"""A choice that serves several steps: what stays, what moves on, when it is made anew."""

import pytest

from decode_service.sparsity.base import Evidence
from decode_service.sparsity.delta import DeltaPolicy
from shared.types.methods import PageHeads, SparsityParams
from tests.support.policy_rows import KV_HEADS, LAYERS, LayerRead, MadeUpRow, make_facts

SPARSE = (2, 3, 5, 6, 7)


def policy(*, every: int, **options: object) -> DeltaPolicy:
    params = SparsityParams(
        full_layers=(0, 1, 4),
        page_budget=6,
        recency_pages=2,
        refresh_every=every,
        **options,  # type: ignore[arg-type]
    )
    return DeltaPolicy(params, num_layers=LAYERS)


def pages(read: LayerRead) -> list[int]:
    assert read.selection is not None
    row: list[int] = read.selection.units_RU[0].tolist()
    return row


def asked(reads: tuple[LayerRead, ...]) -> bool:
    return any(read.evidence is not Evidence.NONE for read in reads)


@pytest.mark.parametrize("every", [2, 3, 5])
def test_the_choice_is_made_every_rth_step_and_evidence_asked_only_then(every: int) -> None:
    row = MadeUpRow(make_facts("shared", prompt_tokens=150, kept=110), steps=40)
    state = policy(every=every).begin(row.facts)
    steps = [asked(row.step(state, generated=generated)) for generated in range(1, 16)]
    assert steps == [step % every == 0 for step in range(15)]


@pytest.mark.parametrize("kind", ["identity", "shared", "layer", "head"])
def test_chosen_pages_stay_while_the_recent_ones_move_on(kind: str) -> None:
    row = MadeUpRow(make_facts(kind, prompt_tokens=150, kept=110), steps=40)
    state = policy(every=40).begin(row.facts)
    first = row.step(state, generated=1)
    for generated in range(2, 40):
        for layer, read in enumerate(row.step(state, generated=generated)):
            if layer in SPARSE:
                last = (read.length - 1) // 16
                chosen = pages(first[layer])[1:-2]
                assert pages(read) == [0, *chosen, last - 1, last]


def test_a_choice_a_kv_head_is_remembered_head_by_head() -> None:
    row = MadeUpRow(make_facts("head", prompt_tokens=150, kept=110), steps=40)
    state = policy(every=40, heads=PageHeads.KV_HEAD).begin(row.facts)
    assert len(row.step(state, generated=1)[2].slots) == KV_HEADS


def test_a_layer_that_outgrows_the_budget_has_a_choice_made_at_once() -> None:
    row = MadeUpRow(make_facts("shared", prompt_tokens=150, kept=90), steps=40)
    state = policy(every=100).begin(row.facts)
    steps = {generated: row.step(state, generated=generated) for generated in range(1, 16)}
    # Pruned layers hold 96 slots, which the budget covers, until the seventh step.
    assert [generated for generated, reads in steps.items() if asked(reads)] == [1, 7]
    assert steps[6][3].selection is None
    assert len(pages(steps[7][3])) == 6


def test_a_choice_that_no_step_committed_is_made_again() -> None:
    row = MadeUpRow(make_facts("identity", prompt_tokens=150, kept=150), steps=40)
    state = policy(every=3).begin(row.facts)
    assert asked(row.step(state, generated=1, commit=False))
    assert asked(row.step(state, generated=1))
    assert not asked(row.step(state, generated=2))
    assert not asked(row.step(state, generated=3))
    assert asked(row.step(state, generated=4, commit=False))
    assert asked(row.step(state, generated=4))


def test_a_forced_row_selects_min_k_p_pages_at_every_step() -> None:
    row = MadeUpRow(make_facts("shared", prompt_tokens=85, kept=40), steps=40)
    state = policy(every=4).begin(row.facts, force=True)
    for generated in range(1, 20):
        reads = row.step(state, generated=generated)
        for layer in SPARSE:
            count = -(-reads[layer].length // 16)
            assert len(pages(reads[layer])) == min(count, 6)
