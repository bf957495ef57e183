import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import ConfigError
from shared.types.methods import PruningParams, SparsityParams
from shared.types.model_identity import ModelIdentity


@given(
    length=st.integers(1, 100_000),
    rate=st.floats(0.01, 1.0),
    window=st.integers(1, 64),
    floor=st.integers(0, 1000),
)
def test_kept_count_is_the_stated_formula(length, rate, window, floor):
    params = PruningParams(
        pruning_layer=1, keep_rate=rate, observation_window=window, min_keep=floor
    )
    expected = min(length, max(math.floor(rate * length), window + 1, floor))
    assert params.kept_count(length) == (length if rate == 1 else expected)


@pytest.mark.parametrize(
    "bad",
    [
        {"keep_rate": 0.0},
        {"keep_rate": 1.5},
        {"keep_rate": float("nan")},
        {"pruning_layer": -1},
        {"aggregation_window": 0},
        {"deferred_layers": -1},
        {"observation_window": 0},
        {"pool_kernel": 4},
        {"min_keep": -1},
        {"ranker": ""},
        {"kv_rate": 0.0},
        {"kv_rate": 1.5},
        {"seed": -1},
        {"mass": 0.0},
        {"mass": 1.1},
        {"min_rate": 0.0},
        {"max_rate": 1.5},
        {"min_rate": 0.6, "max_rate": 0.5},
        {"mass": 0.5, "kv_rate": 0.5},
    ],
)
def test_pruning_parameters_are_checked(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        PruningParams(**({"pruning_layer": 3} | bad))


@pytest.mark.parametrize(
    ("length", "least", "most"), [(1000, 50, 500), (100, 9, 50), (12, 9, 9), (10, 9, 9), (9, 9, 9)]
)
def test_mass_bounds_the_kept_count(length, least, most):
    params = PruningParams(pruning_layer=3, mass=0.9, keep_rate=1.0)
    assert (params.least_count(length), params.kept_count(length)) == (least, most)
    assert params.kv_count(length) == most


def test_mass_drops_something_unless_the_floor_is_the_prompt():
    params = PruningParams(pruning_layer=3, mass=0.9, max_rate=1.0, min_keep=20)
    assert (params.least_count(100), params.kept_count(100)) == (20, 99)
    assert (params.least_count(20), params.kept_count(20)) == (20, 20)


@pytest.mark.parametrize(
    "bad",
    [
        {"full_layers": ()},
        {"full_layers": (2, 1)},
        {"full_layers": (0, 0, 1)},
        {"full_layers": (1, 2)},
        {"recency_pages": 0},
        {"page_budget": 5},
    ],
)
def test_sparsity_parameters_are_checked(bad):
    with pytest.raises(ConfigError):
        SparsityParams(**({"full_layers": (0, 1, 2), "page_budget": 16, "recency_pages": 4} | bad))


def test_identities_name_their_differences():
    one = ModelIdentity(
        name="a", model_hash="h", dtype="float32", num_layers=2, num_kv_heads=1, head_dim=8, rope=""
    )
    other = ModelIdentity(
        name="b",
        model_hash="h",
        dtype="bfloat16",
        num_layers=2,
        num_kv_heads=1,
        head_dim=8,
        rope="",
    )
    assert one.differences(other) == ["dtype: 'float32' against 'bfloat16'"]


def test_caches_count_by_their_own_rate():
    params = PruningParams(pruning_layer=3, keep_rate=0.5, kv_rate=0.1, min_keep=20)
    assert (params.kept_count(1000), params.kv_count(1000)) == (500, 100)
    assert (params.kept_count(100), params.kv_count(100)) == (50, 20)
    same = PruningParams(pruning_layer=3, keep_rate=0.5)
    assert same.kv_count(1000) == same.kept_count(1000)
