"""Requests are checked against a list of the parameters that each page policy looks at."""

from typing import Any, cast

import pytest

from decode_service.sparsity.registry import page_policies, policy_for
from shared.errors import ConfigError
from shared.types.methods import SparsityParams
from shared.types.page_policies import PagePolicyName
from tests.support.policy_rows import LAYERS, MadeUpRow, make_facts


class Watched:
    """Parameters that note which of their fields are looked at."""

    def __init__(self, params: SparsityParams) -> None:
        self._params = params
        self.read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.read.add(name)
        return getattr(self._params, name)


@pytest.mark.parametrize("policy", [name for name in PagePolicyName if name.min_layers > 1])
def test_a_model_has_enough_layers_when_the_list_says_so(policy: PagePolicyName) -> None:
    params = SparsityParams(full_layers=(0,), policy=policy.value)
    assert policy_for(params, num_layers=policy.min_layers).name == policy
    with pytest.raises(ConfigError):
        policy_for(params, num_layers=policy.min_layers - 1)


@pytest.mark.parametrize("policy", [name for name in PagePolicyName if name != "dense"])
def test_the_list_is_what_the_policy_looks_at(policy: PagePolicyName) -> None:
    watched = Watched(
        SparsityParams(
            full_layers=(0, 1, 4), page_budget=4, recency_pages=1, policy=policy.value, mass=0.9
        )
    )
    made = page_policies().get(policy)(cast("SparsityParams", watched), num_layers=LAYERS)
    row = MadeUpRow(make_facts("shared", prompt_tokens=150, kept=90))
    state = made.begin(row.facts)
    for generated in range(1, 4):
        row.step(state, generated=generated)
    assert watched.read - {"policy"} == policy.reads
