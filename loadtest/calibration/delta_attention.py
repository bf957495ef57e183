"""What every layer looks at in decode steps under full attention, for the choice of Δ-layers.

The steps are those of tokens that follow a prompt: their attention is recorded as the tail is fed,
so it is the very attention that a decode worker would compute.

Shapes: Y layers, T slots (prompt and tail up to the fed token), H query heads, G KV heads, R =
H / G query heads of one KV head, D head size, S slots of a tail's buffer, E hidden width.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from loadtest.quality.tail import PromptKv, TailLayer, TailRun
from shared.model.transformer import Transformer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepAttention:
    """One decode step."""

    scores_YT: Tensor
    """Each slot's largest probability among all query heads, float32: what a Δ-layer ranks by."""
    mass_YT: Tensor
    """Its mean probability over the query heads, float32; a layer's row sums to 1."""
    turn_Y: Tensor
    """1 - cos(residual stream before, after) of each layer, float64."""


def spread_steps(total: int, *, count: int) -> list[int]:
    """At most `count` of the steps 0..total-1, evenly apart, half a gap from either end."""
    count = min(count, total)
    return [(2 * i + 1) * total // (2 * count) for i in range(count)]


@torch.inference_mode()
def record_steps(
    model: Transformer, prompt: PromptKv, *, tail_ids: Sequence[int], steps: Sequence[int]
) -> list[StepAttention]:
    """Feeds a tail to a prompt that is held whole, and records some of its tokens.

    Args:
        model: the decoder.
        prompt: every layer holds all of it.
        tail_ids: tokens that follow, at least one.
        steps: which of them to record, ascending.
    """
    recorder = _Recorder(steps)
    run = TailRun(model, [prompt], room=len(tail_ids))
    run.feed(torch.tensor([list(tail_ids)], device=model.device), on_layer=recorder)
    return recorder.recorded()


class _Recorder:
    """A layer sink that keeps the steps asked for."""

    def __init__(self, steps: Sequence[int]) -> None:
        self._scores: dict[int, list[Tensor]] = {step: [] for step in steps}
        self._mass: dict[int, list[Tensor]] = {step: [] for step in steps}
        self._turn: dict[int, list[Tensor]] = {step: [] for step in steps}

    def __call__(self, layer: int, done: TailLayer) -> None:
        """Takes one layer of one block."""
        num_tokens = done.queries_BTHD.shape[1]
        for step, scores in self._scores.items():
            token = step - done.first
            if not 0 <= token < num_tokens:
                continue
            assert len(scores) == layer, "layers come in order"
            keys_GSD = done.keys_BGSD[0]
            seen = keys_GSD.shape[1] - num_tokens + token + 1
            probs_HT = _probabilities(done.queries_BTHD[0, token], keys_GSD[:, :seen])
            scores.append(probs_HT.amax(dim=0))
            self._mass[step].append(probs_HT.mean(dim=0))
            before_E, after_E = done.input_BTE[0, token], done.output_BTE[0, token]
            same = functional.cosine_similarity(before_E.double(), after_E.double(), dim=0)
            self._turn[step].append(1.0 - same)

    def recorded(self) -> list[StepAttention]:
        """The steps, in order."""
        return [
            StepAttention(
                scores_YT=torch.stack(self._scores[step]).cpu(),
                mass_YT=torch.stack(self._mass[step]).cpu(),
                turn_Y=torch.stack(self._turn[step]).cpu(),
            )
            for step in self._scores
        ]


def _probabilities(q_HD: Tensor, keys_GTD: Tensor) -> Tensor:
    """Every query head's attention over all slots given, float32 [H, T]."""
    num_heads, head_dim = q_HD.shape
    q_GRD = (q_HD.float() * head_dim**-0.5).view(keys_GTD.shape[0], -1, head_dim)
    probs_GRT: Tensor = (q_GRD @ keys_GTD.float().transpose(1, 2)).softmax(dim=-1)
    return probs_GRT.view(num_heads, -1)
