"""The positional score board: carries a selection made in one layout into another.

Scores live by POSITION, so a Δ-layer that holds one set of tokens can rank the slots of a layer
that holds another. One board serves one row for one step.

Shapes: G KV heads, R rows of the board (1: all heads together; G; or H query heads), S rows of
slot scores, N prompt slots, T slots, X positions.
"""

import torch

from decode_service.sparsity.layouts import KvLayout


class ScoreBoard:
    """Token scores by position; every position scores 0 until a Δ-layer that holds it writes.

    Args:
        rows: R; a board row stands for consecutive heads.
        prompt_tokens: original prompt length L.
        num_positions: positions in use at this step, the fed token's included.
        device: where the scores live.
    """

    def __init__(
        self, *, rows: int = 1, prompt_tokens: int, num_positions: int, device: torch.device
    ) -> None:
        self._prompt_tokens = prompt_tokens
        self.scores_RX = torch.zeros(rows, num_positions, dtype=torch.float32, device=device)

    def write(self, layout: KvLayout, scores_ST: torch.Tensor) -> None:
        """Overwrites the positions that a Δ-layer of `layout` holds, and leaves the others.

        Of the heads that a board row stands for, a position takes the largest score among those
        that hold it.

        Args:
            layout: of the Δ-layer.
            scores_ST: scores of the slots by KV head or by query head; S is a multiple of R and,
                where KV heads hold different positions, of G.
        """
        rows, positions_RN = self.scores_RX.shape[0], layout.positions_RN
        if positions_RN is None:
            self.scores_RX.copy_(_largest(scores_ST, rows))
            return
        heads, prompt = positions_RN.shape[0], layout.slots
        held_ST = _largest(scores_ST, max(rows, heads))
        self.scores_RX[:, self._prompt_tokens :] = _largest(held_ST[:, prompt:], rows)
        if heads == 1:
            self.scores_RX.index_copy_(1, positions_RN[0], held_ST[:, :prompt])
        elif rows > 1:
            self.scores_RX.scatter_(1, _widened(positions_RN, rows), held_ST[:, :prompt])
        else:
            flat, board_X = positions_RN.flatten(), self.scores_RX[0]
            board_X[flat] = 0.0
            board_X.scatter_reduce_(0, flat, held_ST[:, :prompt].flatten(), reduce="amax")

    def slot_scores(self, layout: KvLayout) -> torch.Tensor:
        """Scores of the slots of a layer of `layout`, [S, T]; read only.

        S is R, or G where one board row meets KV heads that hold different positions.
        """
        rows, positions_RN = self.scores_RX.shape[0], layout.positions_RN
        if positions_RN is None:
            return self.scores_RX
        generated_RT = self.scores_RX[:, self._prompt_tokens :]
        heads = positions_RN.shape[0]
        if heads == 1:
            prompt_SN = self.scores_RX.index_select(1, positions_RN[0])
        elif rows > 1:
            prompt_SN = self.scores_RX.gather(1, _widened(positions_RN, rows))
        else:
            prompt_SN = self.scores_RX[0][positions_RN]
            generated_RT = generated_RT.expand(heads, -1)
        return torch.cat((prompt_SN, generated_RT), dim=1)


def _largest(scores_ST: torch.Tensor, rows: int) -> torch.Tensor:
    """The largest score among the consecutive rows that one of `rows` stands for, [rows, T]."""
    if scores_ST.shape[0] == rows:
        return scores_ST
    if rows == 1:
        return scores_ST.amax(dim=0, keepdim=True)
    heads, length = scores_ST.shape
    return scores_ST.reshape(rows, heads // rows, length).amax(dim=1)


def _widened(positions_GN: torch.Tensor, rows: int) -> torch.Tensor:
    """The positions of every one of `rows` heads, [rows, N]."""
    return positions_GN.repeat_interleave(rows // positions_GN.shape[0], dim=0)
