"""Next-token distributions of arms against dense, step by step.

Shapes: B arms (dense first), V vocabulary, M scored steps.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from loadtest.sparsity.records import BLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One arm over all scored steps; fields as in `ForcedFact`."""

    kl: float
    kl_p95: float
    agreement: float
    kl_full: float
    agreement_full: float
    accuracy: float
    logprob: float
    kl_blocks: list[float]
    agreement_blocks: list[float]


class Comparison:
    """Gathers per-step figures; nothing leaves the device before the end."""

    def __init__(self) -> None:
        self._kl: list[Tensor] = []
        self._same: list[Tensor] = []
        self._kl_full: list[Tensor] = []
        self._same_full: list[Tensor] = []
        self._right: list[Tensor] = []
        self._logprob: list[Tensor] = []

    def add(self, logits_BV: Tensor, *, full_V: Tensor | None, target: int) -> None:
        """Takes one step.

        Args:
            logits_BV: float32 logits, dense in row 0.
            full_V: logits of dense decode over the whole prompt; None: row 0 is that.
            target: the text's next token.
        """
        log_BV = logits_BV.log_softmax(dim=-1)
        top_B = logits_BV.argmax(dim=-1)
        self._kl.append(divergence(log_BV[0], log_BV))
        self._same.append(top_B == top_B[0])
        self._right.append(top_B == target)
        self._logprob.append(log_BV[:, target])
        if full_V is None:
            self._kl_full.append(self._kl[-1])
            self._same_full.append(self._same[-1])
        else:
            self._kl_full.append(divergence(full_V.log_softmax(dim=-1), log_BV))
            self._same_full.append(top_B == full_V.argmax())

    @property
    def scored(self) -> int:
        """Steps taken."""
        return len(self._kl)

    def figures(self) -> list[Figures]:
        """One for each row, dense first."""
        kl_BM = torch.stack(self._kl, dim=1)
        means = {
            "kl": kl_BM.mean(dim=1),
            "kl_p95": kl_BM.quantile(0.95, dim=1),
            "agreement": _mean(self._same),
            "kl_full": _mean(self._kl_full),
            "agreement_full": _mean(self._same_full),
            "accuracy": _mean(self._right),
            "logprob": _mean(self._logprob),
        }
        means |= {
            "kl_blocks": _block_means(kl_BM),
            "agreement_blocks": _block_means(torch.stack(self._same, dim=1).float()),
        }
        columns = {name: values.tolist() for name, values in means.items()}
        return [
            Figures(**{name: values[row] for name, values in columns.items()})
            for row in range(kl_BM.shape[0])
        ]


def divergence(log_p_V: Tensor, log_q_BV: Tensor) -> Tensor:
    """KL(p || q) of each row in nats, [B], p one or one a row; rounding below 0 counts as 0."""
    return (log_p_V.exp() * (log_p_V - log_q_BV)).sum(dim=-1).clamp_min(0.0)


def _block_means(values_BM: Tensor) -> Tensor:
    """Means of runs of `BLOCK` steps, one row an arm."""
    steps = values_BM.shape[1]
    size = min(BLOCK, steps)
    blocks = steps // size
    return values_BM[:, : blocks * size].reshape(-1, blocks, size).mean(dim=2)


def _mean(per_step: list[Tensor]) -> Tensor:
    return torch.stack(per_step, dim=1).float().mean(dim=1)
