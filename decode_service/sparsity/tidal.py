"""TidalDecode: two layers choose single slots for every query head, the others reuse them.

Paper: https://arxiv.org/abs/2410.05076. Layers 0 and 1 are full, layer 2 chooses, one correction
layer chooses again; both also read everything themselves. No recent slots and no sinks are forced.
Slots are ranked by attention probability, which within a head is the paper's order of logits and,
unlike it, compares between two layers. Deviations: the fed token's own slot is always read, and
where layers hold different tokens the choice is carried over by position, head by head.

Shapes: H query heads, T slots, U slots of a selection.
"""

import torch

from decode_service.sparsity.base import Evidence, RowFacts, Selection, slot_selection
from decode_service.sparsity.correction import correcting_roles
from decode_service.sparsity.planner import PlannedRow
from shared.kv.geometry import PAGE_SIZE
from shared.types.methods import SparsityParams


class TidalPolicy:
    """The best 16 K slots of every query head.

    Args:
        params: page budget K, counted in slots; correction layer.
        num_layers: decoder layers of the model.

    Raises:
        ConfigError: the model has no room for the correction layer.
    """

    name = "tidal"

    def __init__(self, params: SparsityParams, *, num_layers: int) -> None:
        self._roles = correcting_roles(params, num_layers=num_layers)
        self._chooser = _HeadSlots(budget=PAGE_SIZE * params.page_budget)

    @classmethod
    def build(cls, params: SparsityParams | None, *, num_layers: int) -> "TidalPolicy":
        """Makes the policy from a request's effective parameters, which must be given.

        Raises:
            ConfigError: the model has no room for the correction layer.
        """
        assert params is not None, "TidalDecode needs parameters"
        return cls(params, num_layers=num_layers)

    def begin(self, facts: RowFacts, *, force: bool = False) -> PlannedRow:
        """Takes up a row."""
        return PlannedRow(facts=facts, roles=self._roles, chooser=self._chooser, force=force)


class _HeadSlots:
    """Every query head keeps the slots that it likes best."""

    evidence = Evidence.PROBS

    def __init__(self, *, budget: int) -> None:
        self._budget = budget

    def board_rows(self, facts: RowFacts) -> int:
        """One a query head."""
        return facts.num_heads

    def covers(self, length: int) -> bool:
        """Whether the slots fit 16 K."""
        return length <= self._budget

    def choose(self, scores_ST: torch.Tensor) -> Selection:
        """The best slots of each head, the last one among them; ties go to the lower slot."""
        ranked_HT = torch.nan_to_num(scores_ST, nan=-torch.inf)
        ranked_HT[:, -1] = torch.inf
        order_HT = torch.argsort(ranked_HT, dim=1, descending=True, stable=True)
        return slot_selection(order_HT[:, : self._budget].sort(dim=1).values)
