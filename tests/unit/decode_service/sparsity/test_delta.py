import pytest

from decode_service.sparsity.base import LayerRole
from decode_service.sparsity.delta import DeltaPolicy, layer_roles
from shared.errors import ConfigError
from shared.types.methods import SparsityParams

F, D, S = LayerRole.FULL, LayerRole.DELTA, LayerRole.SPARSE


def test_roles_of_the_paper() -> None:
    roles = layer_roles((0, 1, 2, 14, 22), num_layers=28)
    assert [layer for layer, role in enumerate(roles) if role is D] == [2, 14, 22]
    assert roles[:2] == (F, F)
    assert roles[27] is S


@pytest.mark.parametrize(
    ("full_layers", "roles"),
    [
        ((0,), (D, S, S, S)),
        ((0, 3), (D, S, S, F)),
        ((0, 1, 2), (F, F, D, S)),
        ((0, 2, 3), (D, S, F, F)),
        ((0, 1, 2, 3), (F, F, F, F)),
    ],
)
def test_a_full_layer_before_a_sparse_one_plans_and_the_last_never_does(
    full_layers: tuple[int, ...], roles: tuple[LayerRole, ...]
) -> None:
    assert layer_roles(full_layers, num_layers=4) == roles


def test_full_layers_of_another_model_are_refused() -> None:
    with pytest.raises(ConfigError, match="layer 22 of a model of 12"):
        DeltaPolicy(SparsityParams(full_layers=(0, 22)), num_layers=12)


@pytest.mark.parametrize(
    ("full_layers", "budget", "recency"),
    [((), 16, 4), ((1, 2), 16, 4), ((0, 2, 1), 16, 4), ((0,), 5, 4), ((0,), 16, 0)],
)
def test_parameters_that_cannot_work_are_refused(
    full_layers: tuple[int, ...], budget: int, recency: int
) -> None:
    with pytest.raises(ConfigError):
        SparsityParams(full_layers=full_layers, page_budget=budget, recency_pages=recency)


def test_the_count_depends_on_the_length_alone() -> None:
    policy = DeltaPolicy(SparsityParams(full_layers=(0,), page_budget=16), num_layers=4)
    assert [policy.num_selected(n) for n in (1, 15, 16, 17, 1000)] == [1, 15, 16, 16, 16]
