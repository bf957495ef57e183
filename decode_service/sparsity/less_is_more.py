"""LessIsMore: the heads' favourite slots, united into one set that all heads read.

Paper: https://arxiv.org/abs/2508.07101. Layers as in TidalDecode: 0 and 1 full, layer 2 and one
correction layer choose. A share of the budget goes to the last slots. For the rest every head
ranks the earlier slots by attention probability, and the lists are united rank by rank: first every
head's best, then every head's second, and so on, until the budget is full. Deviations: where layers
hold different tokens the ranking is carried over by position, head by head, and the union is made
anew; the sinks that its released code offers as an option are left out.

Shapes: H query heads, T slots, M earlier slots, U slots of a selection.
"""

import torch

from decode_service.sparsity.base import Selection, slot_selection
from decode_service.sparsity.correction import CorrectedPolicy
from shared.types.methods import SparsityParams


class LessIsMorePolicy(CorrectedPolicy):
    """16 K slots for all heads: the last ones, and the union of the heads' best.

    Args:
        params: page budget K, counted in slots; share of the last slots; correction layer.
        num_layers: decoder layers of the model.

    Raises:
        ConfigError: the model has no room for the correction layer.
    """

    name = "less_is_more"

    def __init__(self, params: SparsityParams, *, num_layers: int) -> None:
        super().__init__(params, num_layers=num_layers)
        # The fed token's slot is a recent one, so there is always one; rounded down, they never
        # fill the budget, since their share is below 1.
        self._recent = max(1, int(self.budget * params.recent_share))

    def choose(self, scores_ST: torch.Tensor) -> Selection:
        """The last slots and the union of the best earlier ones."""
        length = scores_ST.shape[1]
        if self.covers(length):
            return slot_selection(torch.arange(length, device=scores_ST.device)[None])
        earlier = length - self._recent
        best_U = united(scores_ST[:, :earlier], count=self.budget - self._recent)
        last_U = torch.arange(earlier, length, device=scores_ST.device)
        return slot_selection(torch.cat((best_U, last_U))[None])


def united(scores_HM: torch.Tensor, *, count: int) -> torch.Tensor:
    """The first `count` different slots of all heads' rankings, read rank by rank.

    Within a rank the lower head comes first, within a head ties go to the lower slot.

    Args:
        scores_HM: scores of the slots, head by head.
        count: at most M.

    Returns:
        Slots, int64 [count], ascending.
    """
    ranked_HM = torch.nan_to_num(scores_HM, nan=-torch.inf)
    order_HM = torch.argsort(ranked_HM, dim=1, descending=True, stable=True)
    # One head alone names `count` different slots within `count` ranks: later ranks never matter.
    named = order_HM[:, :count].T.flatten()
    turns = torch.arange(named.shape[0], device=named.device)
    first_turn_M = torch.full_like(order_HM[0], named.shape[0])
    first_turn_M.scatter_reduce_(0, named, turns, reduce="amin")
    return torch.argsort(first_turn_M)[:count].sort().values
