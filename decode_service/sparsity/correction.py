"""Roles of TidalDecode and LessIsMore: one layer chooses slots, a later one corrects the choice."""

from decode_service.sparsity.base import LayerRole
from shared.errors import ConfigError
from shared.types.methods import FIRST_CHOOSING_LAYER, SparsityParams


def correcting_roles(params: SparsityParams, *, num_layers: int) -> tuple[LayerRole, ...]:
    """Two full layers, a choosing layer, sparse ones, the correction layer, sparse ones.

    Without `correction_layer` it is at 13/32 of the depth, rounded: layer 13 of the 32 of the
    papers' Llama-3-8B. A shallow model has it at layer 3 at the least, before its last at the most.

    Raises:
        ConfigError: the model has no room for a correction layer, or not where it was asked for.
    """
    earliest, latest = FIRST_CHOOSING_LAYER + 1, num_layers - 2
    if latest < earliest:
        raise ConfigError(
            f"a model of {num_layers} layers is too shallow to choose at layer "
            f"{FIRST_CHOOSING_LAYER} and again before the last; use another page policy"
        )
    correction = params.correction_layer
    if correction is None:
        # Rounds half up; `round` would take half of them down.
        correction = min(max((26 * num_layers + 32) // 64, earliest), latest)
    if correction > latest:
        raise ConfigError(
            f"correction_layer {correction} leaves no layer after it in a model of {num_layers}: "
            f"the setting belongs to a deeper one; choose {earliest}..{latest}"
        )
    roles = [LayerRole.SPARSE] * num_layers
    roles[:FIRST_CHOOSING_LAYER] = [LayerRole.FULL] * FIRST_CHOOSING_LAYER
    roles[FIRST_CHOOSING_LAYER] = roles[correction] = LayerRole.DELTA
    return tuple(roles)
