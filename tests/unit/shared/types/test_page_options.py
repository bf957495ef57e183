"""Overrides of page selection: what is refused, what comes out, what is reported."""

import math
from dataclasses import fields
from typing import Any

import pytest

from shared.errors import ConfigError, InvalidRequestError
from shared.types.effective import effective_sparsity
from shared.types.methods import PageHeads, PageLayout, SparsityParams
from shared.types.options import PAGE_FIELDS, Mode, RequestOptions
from shared.types.page_policies import PagePolicyName
from shared.types.page_summary import PageSummary, summary_of

PROFILE = SparsityParams(full_layers=(0, 2), page_budget=16, recency_pages=4)
VALUES: dict[str, Any] = {
    "page_budget": 9,
    "recency_pages": 2,
    "page_layout": PageLayout.SEGMENT,
    "page_heads": PageHeads.KV_HEAD,
    "page_refresh": 3,
    "page_mass": 0.5,
}


def refusal(options: RequestOptions, profile: SparsityParams = PROFILE) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        effective_sparsity(profile, options, num_layers=6)
    return caught.value


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"page_refresh": 0}, "tandem.page_refresh"),
        ({"page_refresh": -1}, "tandem.page_refresh"),
        ({"page_mass": 0.0}, "tandem.page_mass"),
        ({"page_mass": 1.5}, "tandem.page_mass"),
        ({"page_mass": math.nan}, "tandem.page_mass"),
    ],
)
def test_values_out_of_range_are_refused_by_name(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        RequestOptions(**changes).check_pages()
    assert caught.value.param == param


@pytest.mark.parametrize("policy", PagePolicyName)
@pytest.mark.parametrize("name", PAGE_FIELDS)
def test_an_override_is_used_or_refused_never_ignored(policy: PagePolicyName, name: str) -> None:
    options = RequestOptions(page_policy=policy, **{name: VALUES[name]})
    field = PAGE_FIELDS[name]
    if field in policy.reads:
        params = effective_sparsity(PROFILE, options, num_layers=6)
        assert params is not None
        assert (params.policy, getattr(params, field)) == (policy, VALUES[name])
        return
    for error in (refusal(options), _refused_without_a_profile(options)):
        assert error.param == f"tandem.{name}"
        assert f"{policy.value} does not use it" in error.message
        assert "delta" in error.message


def _refused_without_a_profile(options: RequestOptions) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        options.check_pages()
    return caught.value


def test_the_profiles_policy_counts_when_the_request_names_none() -> None:
    profile = SparsityParams(full_layers=(0, 2), policy="quest")
    options = RequestOptions(page_heads=PageHeads.KV_HEAD)
    options.check_pages()
    assert refusal(options, profile).param == "tandem.page_heads"
    changed = effective_sparsity(
        profile,
        RequestOptions(page_heads=PageHeads.KV_HEAD, page_policy=PagePolicyName.DELTA),
        num_layers=6,
    )
    assert changed is not None
    assert (changed.policy, changed.heads) == ("delta", PageHeads.KV_HEAD)


def test_recency_that_a_policy_does_not_read_does_not_limit_its_budget() -> None:
    options = RequestOptions(page_policy=PagePolicyName.QUEST, page_budget=3)
    params = effective_sparsity(PROFILE, options, num_layers=6)
    assert params is not None
    assert params.page_budget == 3
    assert refusal(RequestOptions(page_budget=3)).param == "tandem.page_budget"
    smallest = RequestOptions(page_policy=PagePolicyName.QUEST, page_budget=2)
    assert refusal(smallest).param == "tandem.page_budget"


@pytest.mark.parametrize("mode", [Mode.FULL, Mode.PRUNE])
def test_dense_modes_stay_dense_whatever_the_policy(mode: Mode) -> None:
    options = RequestOptions(mode=mode, page_policy=PagePolicyName.QUEST, page_budget=8)
    assert effective_sparsity(PROFILE, options, num_layers=6) is None


@pytest.mark.parametrize("policy", [PagePolicyName.TIDAL, PagePolicyName.LESS_IS_MORE])
def test_a_policy_that_the_model_is_too_shallow_for_is_refused(policy: PagePolicyName) -> None:
    options = RequestOptions(page_policy=policy)
    assert effective_sparsity(PROFILE, options, num_layers=policy.min_layers) is not None
    with pytest.raises(InvalidRequestError, match="5 layers or more, this one has 4") as caught:
        effective_sparsity(PROFILE, options, num_layers=policy.min_layers - 1)
    assert caught.value.param == "tandem.page_policy"


def test_every_policy_reads_only_what_there_is() -> None:
    known = {field.name for field in fields(SparsityParams)} - {"policy"}
    for policy in PagePolicyName:
        assert policy.reads <= known
    assert set(PAGE_FIELDS) == set(VALUES)


def test_an_unknown_policy_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'dleta' is unknown; known: dense, delta, quest"):
        SparsityParams(full_layers=(0,), policy="dleta")


def test_a_summary_has_what_the_policy_reads() -> None:
    assert summary_of(None) == PageSummary(policy="dense")
    assert summary_of(PROFILE) == PageSummary(
        policy="delta",
        page_budget=16,
        recency_pages=4,
        layout="board",
        heads="shared",
        refresh_every=1,
    )
    quest = effective_sparsity(
        PROFILE, RequestOptions(page_policy=PagePolicyName.QUEST), num_layers=6
    )
    assert summary_of(quest) == PageSummary(policy="quest", page_budget=16)
    assert summary_of(quest).to_json() == {
        "policy": "quest",
        "page_budget": 16,
        "recency_pages": None,
        "layout": None,
        "heads": None,
        "refresh": None,
        "mass": None,
    }
