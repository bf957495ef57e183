"""The page policy of one request, and its parameters."""

import pytest

from decode_service.sparsity.registry import policy_for
from shared.errors import InvalidRequestError
from shared.types.effective import effective_sparsity
from shared.types.methods import SparsityParams
from shared.types.options import Mode, RequestOptions

PROFILE = SparsityParams(full_layers=(0, 2), page_budget=16, recency_pages=4)


@pytest.mark.parametrize("mode", [Mode.FULL, Mode.PRUNE])
def test_dense_modes(mode: Mode) -> None:
    params = effective_sparsity(PROFILE, RequestOptions(mode=mode), num_layers=6)
    assert params is None
    assert policy_for(params, num_layers=6).name == "dense"


@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.SPARSE, Mode.BOTH])
def test_sparse_modes_follow_the_profile(mode: Mode) -> None:
    params = effective_sparsity(PROFILE, RequestOptions(mode=mode), num_layers=6)
    assert params == PROFILE
    assert policy_for(params, num_layers=6).name == "delta"


def test_overrides() -> None:
    options = RequestOptions(page_budget=8, recency_pages=2)
    params = effective_sparsity(PROFILE, options, num_layers=6)
    assert params == SparsityParams(full_layers=(0, 2), page_budget=8, recency_pages=2)


@pytest.mark.parametrize(
    ("budget", "recency", "names"),
    [
        (5, None, "tandem.page_budget"),
        (None, 15, "tandem.page_budget"),
        (0, None, "tandem.page_budget"),
        (8, 0, "tandem.recency_pages"),
    ],
)
def test_impossible_overrides_name_the_field(
    budget: int | None, recency: int | None, names: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        effective_sparsity(
            PROFILE, RequestOptions(page_budget=budget, recency_pages=recency), num_layers=6
        )
    assert caught.value.param == names
