"""The positional score board: carries a selection made in one layout into another.

Scores live by POSITION, so a Δ-layer that holds one set of tokens can rank the pages of a layer
that holds another. One board serves one row for one step.

Shapes: G KV heads, R rows of a position map (1 or G), T slots, X positions, P pages.
"""

import torch

from decode_service.sparsity.layouts import KvLayout
from decode_service.sparsity.page_scores import page_sums


class ScoreBoard:
    """Token scores by position; every position scores 0 until a Δ-layer that holds it writes.

    Args:
        prompt_tokens: original prompt length L.
        num_positions: positions in use at this step, the fed token's included.
        device: where the scores live.
    """

    def __init__(self, *, prompt_tokens: int, num_positions: int, device: torch.device) -> None:
        self._prompt_tokens = prompt_tokens
        self.scores_X = torch.zeros(num_positions, dtype=torch.float32, device=device)

    def write(self, layout: KvLayout, scores_GT: torch.Tensor) -> None:
        """Overwrites the positions that a Δ-layer of `layout` holds, and leaves the others.

        Where KV heads hold different positions, a position takes the largest score among the heads
        that hold it.
        """
        positions_RN = layout.positions_RN
        if positions_RN is None:
            self.scores_X.copy_(scores_GT.amax(dim=0))
            return
        generated_T = scores_GT[:, layout.slots :].amax(dim=0)
        self.scores_X[self._prompt_tokens :] = generated_T
        prompt_GN = scores_GT[:, : layout.slots]
        if positions_RN.shape[0] == 1:
            self.scores_X[positions_RN[0]] = prompt_GN.amax(dim=0)
            return
        flat = positions_RN.flatten()
        self.scores_X[flat] = 0.0
        self.scores_X.scatter_reduce_(0, flat, prompt_GN.flatten(), reduce="amax")

    def page_scores(self, layout: KvLayout) -> torch.Tensor:
        """Scores of the pages of a layer of `layout`, [P].

        The sum over a page's slots; where KV heads hold different positions, the largest sum among
        them.
        """
        positions_RN = layout.positions_RN
        if positions_RN is None:
            return page_sums(self.scores_X)
        prompt_RN = self.scores_X[positions_RN]
        generated_RT = self.scores_X[self._prompt_tokens :].expand(prompt_RN.shape[0], -1)
        return page_sums(torch.cat((prompt_RN, generated_RT), dim=1)).amax(dim=0)
