"""Every registered page policy keeps the same promises."""

import pytest

from decode_service.sparsity.base import LayerRole, PagePolicy, RowFacts, visible_slots
from decode_service.sparsity.registry import page_policies, policy_for
from shared.errors import ConfigError
from shared.kv.geometry import PAGE_SIZE, pages_for
from shared.types.methods import PageHeads, PageLayout, SparsityParams
from shared.types.page_policies import PagePolicyName
from tests.support.policy_rows import (
    HEADS,
    KV_HEADS,
    LAYERS,
    LayerRead,
    MadeUpRow,
    make_facts,
)

BUDGET, RECENCY = 6, 2
KINDS = ("identity", "shared", "layer", "head")


def params_of(policy: str, **options: object) -> SparsityParams:
    return SparsityParams(
        full_layers=(0, 1, 4),
        page_budget=BUDGET,
        recency_pages=RECENCY,
        policy=policy,
        **options,  # type: ignore[arg-type]
    )


PARAMS = {name: params_of(name) for name in page_policies().names()} | {
    "delta-segment": params_of("delta", layout=PageLayout.SEGMENT),
    "delta-kv-heads": params_of("delta", heads=PageHeads.KV_HEAD),
    "delta-refresh": params_of("delta", refresh_every=3),
    "delta-mass": params_of("delta", mass=0.5),
    "delta-all-options": params_of(
        "delta",
        layout=PageLayout.SEGMENT,
        heads=PageHeads.KV_HEAD,
        refresh_every=4,
        mass=0.8,
    ),
}


@pytest.fixture(params=PARAMS)
def params(request: pytest.FixtureRequest) -> SparsityParams:
    return PARAMS[request.param]


@pytest.fixture
def policy(params: SparsityParams) -> PagePolicy:
    return policy_for(params, num_layers=LAYERS)


def long_rows() -> list[MadeUpRow]:
    """Every layer holds more than the budget, from the first step on."""
    return [MadeUpRow(make_facts(kind, prompt_tokens=150, kept=110)) for kind in KINDS]


def short_rows() -> list[MadeUpRow]:
    """No layer comes to hold more than the budget."""
    return [MadeUpRow(make_facts(kind, prompt_tokens=70, kept=33)) for kind in KINDS]


def growing_rows() -> list[MadeUpRow]:
    """Layers that hold the whole prompt outgrow the budget in step 7, the others never."""
    return [MadeUpRow(make_facts(kind, prompt_tokens=90, kept=60)) for kind in KINDS]


def answering_row() -> MadeUpRow:
    """The answer alone outgrows the budget, near its end."""
    return MadeUpRow(make_facts("shared", prompt_tokens=40, kept=30), steps=70)


@pytest.fixture(params=long_rows(), ids=KINDS)
def long_row(request: pytest.FixtureRequest) -> MadeUpRow:
    row: MadeUpRow = request.param
    return row


@pytest.fixture(params=short_rows(), ids=KINDS)
def short_row(request: pytest.FixtureRequest) -> MadeUpRow:
    row: MadeUpRow = request.param
    return row


@pytest.fixture(params=growing_rows(), ids=KINDS)
def growing_row(request: pytest.FixtureRequest) -> MadeUpRow:
    row: MadeUpRow = request.param
    return row


@pytest.fixture(
    params=[*long_rows(), *growing_rows(), answering_row()],
    ids=[*(f"long-{kind}" for kind in KINDS), *(f"growing-{kind}" for kind in KINDS), "answering"],
)
def row(request: pytest.FixtureRequest) -> MadeUpRow:
    row: MadeUpRow = request.param
    return row


def run(policy: PagePolicy, row: MadeUpRow, *, force: bool = False) -> list[tuple[LayerRead, ...]]:
    state = policy.begin(row.facts, force=force)
    return [row.step(state, generated=generated) for generated in row.lengths]


def slots_of(steps: list[tuple[LayerRead, ...]]) -> list[list[tuple[tuple[int, ...], ...]]]:
    return [[read.slots for read in reads] for reads in steps]


def most_slots(params: SparsityParams, facts: RowFacts, layer: int) -> int:
    """Slots that a sparse layer may read in a row of its selection."""
    pages = params.page_budget
    if params.policy == "raas":  # keeps the prompt whole, and some of the answer even then
        pages = max(pages, pages_for(facts.layout_of(layer).slots) + params.recency_pages)
    return pages * PAGE_SIZE


def test_the_name_is_the_registered_one(params: SparsityParams, policy: PagePolicy) -> None:
    assert policy.name == params.policy


def test_every_layer_has_a_role_and_only_sparse_ones_choose(
    policy: PagePolicy, long_row: MadeUpRow
) -> None:
    roles = policy.begin(long_row.facts).roles
    assert len(roles) == LAYERS
    for reads in run(policy, long_row):
        for role, read in zip(roles, reads, strict=True):
            assert role is LayerRole.SPARSE or read.selection is None


@pytest.mark.parametrize("force", [False, True], ids=["gated", "forced"])
def test_selections_are_ascending_unique_in_range_and_hold_the_fed_token(
    policy: PagePolicy, long_row: MadeUpRow, force: bool
) -> None:
    for read in (read for reads in run(policy, long_row, force=force) for read in reads):
        for slots in read.slots:
            assert list(slots) == sorted(set(slots))
            assert slots[0] >= 0
            assert slots[-1] == read.length - 1
        selection = read.selection
        if selection is None:
            continue
        assert selection.unit in {1, PAGE_SIZE}
        assert selection.units_RU.shape[0] in {1, KV_HEADS, HEADS}
        assert all(len(slots) == selection.visible for slots in read.slots)
        if selection.unit == PAGE_SIZE:
            units = selection.units_RU.shape[1]
            assert selection.visible == visible_slots(read.length, units)


def test_a_sparse_layer_reads_no_more_than_its_budget(
    policy: PagePolicy, params: SparsityParams, row: MadeUpRow
) -> None:
    for reads in run(policy, row):
        for layer, read in enumerate(reads):
            if read.selection is not None:
                assert read.selection.visible <= most_slots(params, row.facts, layer)


def test_every_policy_but_dense_comes_to_read_less_than_everything(
    policy: PagePolicy, params: SparsityParams
) -> None:
    last = run(policy, answering_row())[-1]
    read_less = any(len(read.slots[0]) < read.length for read in last)
    assert read_less is (params.policy != "dense")


def test_a_row_within_the_budget_reads_everything(policy: PagePolicy, short_row: MadeUpRow) -> None:
    assert all(read.selection is None for reads in run(policy, short_row) for read in reads)


def test_a_forced_row_within_the_budget_selects_everything(
    policy: PagePolicy, short_row: MadeUpRow
) -> None:
    roles = policy.begin(short_row.facts, force=True).roles
    for reads in run(policy, short_row, force=True):
        for role, read in zip(roles, reads, strict=True):
            assert (read.selection is None) is (role is not LayerRole.SPARSE)
            assert all(slots == tuple(range(read.length)) for slots in read.slots)


def test_a_layer_reads_everything_until_it_outgrows_the_budget(
    policy: PagePolicy, growing_row: MadeUpRow
) -> None:
    for read in (read for reads in run(policy, growing_row) for read in reads):
        assert read.selection is None or read.length > BUDGET * PAGE_SIZE


def test_a_step_that_does_not_commit_leaves_no_trace(policy: PagePolicy, row: MadeUpRow) -> None:
    state = policy.begin(row.facts)
    steps = []
    for generated in row.lengths:
        row.step(state, generated=generated, commit=False)
        row.step(state, generated=generated, commit=False, layers=5)
        steps.append(row.step(state, generated=generated))
    assert slots_of(steps) == slots_of(run(policy, row))


def test_equal_rows_read_equal_slots(params: SparsityParams, long_row: MadeUpRow) -> None:
    first, second = (
        run(policy_for(params, num_layers=LAYERS), MadeUpRow(long_row.facts)) for _ in range(2)
    )
    assert slots_of(first) == slots_of(second)


def test_rows_that_share_a_policy_do_not_meet(policy: PagePolicy, long_row: MadeUpRow) -> None:
    rows = (long_row, MadeUpRow(long_row.facts, seed=1))
    alone = [slots_of(run(policy, row)) for row in rows]
    states = [policy.begin(row.facts) for row in rows]
    together: list[list[tuple[LayerRead, ...]]] = [[], []]
    for generated in long_row.lengths:
        for row, state, steps in zip(rows, states, together, strict=True):
            steps.append(row.step(state, generated=generated))
    assert [slots_of(steps) for steps in together] == alone


def test_visible_slots_count_the_partial_last_page_once() -> None:
    assert [visible_slots(n, 2) for n in (17, 31, 32, 33)] == [17, 31, 32, 17]


def test_a_request_without_parameters_is_dense() -> None:
    assert policy_for(None, num_layers=LAYERS).name == "dense"


def test_the_names_that_a_request_may_give_are_those_registered() -> None:
    assert set(page_policies().names()) == set(PagePolicyName)


def test_an_unknown_policy_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'delta'.*known: .*delta, dense"):
        page_policies().get("detla")
