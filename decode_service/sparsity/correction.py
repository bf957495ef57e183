"""The common part of TidalDecode and LessIsMore: a layer chooses slots, a later one corrects them.

Shapes: S rows of slot scores (a query head each), T slots of the row in one layer.
"""

from abc import ABC, abstractmethod

import torch

from decode_service.sparsity.base import Evidence, LayerRole, RowFacts, Selection
from decode_service.sparsity.planner import PlannedRow
from shared.errors import ConfigError
from shared.kv.geometry import PAGE_SIZE
from shared.types.methods import FIRST_CHOOSING_LAYER, SparsityParams


class CorrectedPolicy(ABC):
    """A method of two choosing layers that counts K in slots; a member writes `choose`.

    Args:
        params: page budget K; correction layer; whatever the member looks at.
        num_layers: decoder layers of the model.

    Raises:
        ConfigError: the model has no room for the correction layer.
    """

    name: str
    """Name in the registry."""
    evidence = Evidence.PROBS

    def __init__(self, params: SparsityParams, *, num_layers: int) -> None:
        self.budget = PAGE_SIZE * params.page_budget
        self._roles = correcting_roles(params, num_layers=num_layers)

    def begin(self, facts: RowFacts, *, force: bool = False) -> PlannedRow:
        """See `PagePolicy.begin`."""
        return PlannedRow(facts=facts, roles=self._roles, chooser=self, force=force)

    def board_rows(self, facts: RowFacts) -> int:
        """One a query head, so that its ranking follows the positions into every layout."""
        return facts.num_heads

    def covers(self, length: int) -> bool:
        """Whether the slots fit 16 K."""
        return length <= self.budget

    @abstractmethod
    def choose(self, scores_ST: torch.Tensor) -> Selection:
        """See `Chooser.choose`."""


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
