"""TidalDecode: two layers choose single slots for every query head, the others reuse them.

Paper: https://arxiv.org/abs/2410.05076. Layers 0 and 1 are full, layer 2 chooses, one correction
layer chooses again; both also read everything themselves. No recent slots and no sinks are forced.
Slots are ranked by attention probability, which within a head is the paper's order of logits and,
unlike it, compares between two layers. Deviations: the fed token's own slot is always read, and
where layers hold different tokens the choice is carried over by position, head by head.

Shapes: H query heads, T slots, U slots of a selection.
"""

import torch

from decode_service.sparsity.base import Selection, slot_selection
from decode_service.sparsity.correction import CorrectedPolicy


class TidalPolicy(CorrectedPolicy):
    """The best 16 K slots of every query head."""

    name = "tidal"

    def choose(self, scores_ST: torch.Tensor) -> Selection:
        """The best slots of each head, the last one among them; ties go to the lower slot."""
        ranked_HT = torch.nan_to_num(scores_ST, nan=-torch.inf)
        ranked_HT[:, -1] = torch.inf
        order_HT = torch.argsort(ranked_HT, dim=1, descending=True, stable=True)
        return slot_selection(order_HT[:, : self.budget].sort(dim=1).values)
