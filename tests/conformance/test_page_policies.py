"""Every registered page policy keeps the same promises."""

import pytest
import torch

from decode_service.sparsity.base import LayerRole, PagePolicy, make_selection, visible_slots
from decode_service.sparsity.registry import page_policies, policy_for
from shared.errors import ConfigError
from shared.kv.geometry import pages_for
from shared.types.methods import SparsityParams

LAYERS = 8
PARAMS = {
    "dense": None,
    "delta": SparsityParams(full_layers=(0, 1, 4), page_budget=6, recency_pages=2),
}


@pytest.fixture(params=page_policies().names())
def policy(request: pytest.FixtureRequest) -> PagePolicy:
    return page_policies().get(request.param)(PARAMS[request.param], num_layers=LAYERS)


def test_the_name_is_the_registered_one(policy: PagePolicy) -> None:
    assert policy.name in page_policies().names()


def test_every_layer_has_a_role_and_every_sparse_one_a_delta_layer_before_it(
    policy: PagePolicy,
) -> None:
    assert len(policy.roles) == LAYERS
    planned = False
    for role in policy.roles:
        planned = planned or role is LayerRole.DELTA
        assert planned or role is not LayerRole.SPARSE


@pytest.mark.parametrize("kv_length", [1, 15, 16, 17, 95, 96, 97, 500])
def test_selections_are_ascending_unique_in_range_and_exact(
    policy: PagePolicy, kv_length: int
) -> None:
    num_pages = pages_for(kv_length)
    selection = make_selection(policy, torch.rand(num_pages), kv_length=kv_length)
    pages = selection.pages.tolist()
    assert pages == sorted(set(pages))
    assert len(pages) == policy.num_selected(num_pages)
    assert pages[0] == 0
    assert pages[-1] == num_pages - 1
    assert selection.visible == sum(min(16, kv_length - 16 * page) for page in pages)


def test_equal_scores_give_equal_pages(policy: PagePolicy) -> None:
    scores_P = torch.rand(40)
    assert torch.equal(policy.select(scores_P), policy.select(scores_P.clone()))


def test_a_short_row_keeps_every_page(policy: PagePolicy) -> None:
    assert policy.select(torch.rand(5)).tolist() == [0, 1, 2, 3, 4]


def test_visible_slots_count_the_partial_last_page_once() -> None:
    assert [visible_slots(n, 2) for n in (17, 31, 32, 33)] == [17, 31, 32, 17]


def test_a_request_without_parameters_is_dense() -> None:
    assert policy_for(None, num_layers=LAYERS).name == "dense"
    assert policy_for(PARAMS["delta"], num_layers=LAYERS).name == "delta"


def test_an_unknown_policy_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="delta, dense"):
        page_policies().get("detla")
