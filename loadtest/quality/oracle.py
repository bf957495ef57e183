"""The answer-informed oracle: which prompt tokens an answer really looked at.

It reads the prompt in full, answers greedily, and scores each prompt token by the attention that
the last prompt token and every answer token pay to it: the largest over heads and layers, averaged
over those tokens. It needs the answer first, so it is a yardstick and no method.

Shapes: L prompt tokens, W window rows, A tokens that ask (the last of the prompt, then the answer),
H query heads, G KV heads, D head size.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor
from torch.nn import functional

from loadtest.quality.tail import PromptKv, TailRun
from prefill_service.engine.evaluate import EvaluatedPrompt
from prefill_service.ranking.base import Observation
from shared.errors import ConfigError
from shared.model.transformer import Transformer

_LOGITS = 1 << 26
"""Attention logits that exist at once, however long the answer."""
_STD_FLOOR = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleSwitches:
    """How attention becomes the oracle's score; results name it by its label."""

    softmax: bool = True
    """Probabilities over the prompt; off: plain scaled products."""
    zhead: bool = False
    """Each head's values are standardised over positions before the largest is taken."""
    pool_kernel: int = 7
    """Width of the average pool over positions, odd; zero padding counts."""

    def __post_init__(self) -> None:
        if self.pool_kernel < 1 or self.pool_kernel % 2 == 0:
            raise ConfigError(
                f"the oracle's pool_kernel is {self.pool_kernel}: a pool centred on a token has an "
                "odd width; 7 and 13 are in use"
            )

    @property
    def label(self) -> str:
        """In a few words, as a plot names it: `softmax, pool 7`."""
        kind = "softmax" if self.softmax else "raw"
        return f"{kind}{', zhead' if self.zhead else ''}, pool {self.pool_kernel}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedPrompt:
    """A prompt's keys in every layer and the queries that looked at them."""

    keys: Sequence[Tensor]
    """Rotated keys of the whole prompt [L, G, D] of each layer."""
    window_queries: Sequence[Tensor]
    """Rotated queries of the last W prompt tokens [W, H, D] of each layer."""
    answer_queries: Sequence[Tensor]
    """Rotated queries of the last prompt token and each answer token [A, H, D] of each layer."""

    @property
    def prompt_tokens(self) -> int:
        """L."""
        return self.keys[0].shape[0]

    def observation(self, layer: int, *, window: int) -> Observation:
        """What a ranker sees of one layer through a window of at most W tokens."""
        queries_WHD = self.window_queries[layer]
        if not 1 <= window <= queries_WHD.shape[0]:
            raise ConfigError(
                f"a window of {window} tokens was not recorded: this prompt has the queries of its "
                f"last {queries_WHD.shape[0]}; record a larger window"
            )
        return Observation(
            q_WHD=queries_WHD[queries_WHD.shape[0] - window :], k_LGD=self.keys[layer]
        )


@torch.inference_mode()
def ask_prompt(
    model: Transformer,
    full: EvaluatedPrompt,
    *,
    token_ids: Sequence[int],
    answer_ids: Sequence[int],
    window: int,
) -> AskedPrompt:
    """Collects the queries of a prompt's last tokens and of its answer, in one pass over those.

    Args:
        model: the decoder.
        full: the prompt read in full.
        token_ids: the prompt.
        answer_ids: the answer, stop token left out; it may be empty.
        window: W; a shorter prompt gives what it has.

    Raises:
        ConfigError: `full` does not hold the whole prompt, or the window is below 1.
    """
    num_tokens = len(token_ids)
    if full.next_position != num_tokens or any(
        kv.keys_NGD.shape[0] != num_tokens for kv in full.layer_kv
    ):
        raise ConfigError(
            f"the oracle needs all {num_tokens} tokens of the prompt in every layer: this prefill "
            "was pruned; prefill with keep_rate 1"
        )
    if window < 1:
        raise ConfigError(f"the window is {window}: at least the last prompt token asks")
    window = min(window, num_tokens)
    tail_ids = [*token_ids[num_tokens - window :], *answer_ids]
    queries: list[list[Tensor]] = [[] for _ in model.layers]
    run = TailRun(model, [PromptKv.of(full).without_last(window)], room=len(tail_ids))
    run.feed(
        torch.tensor([tail_ids], device=model.device),
        on_queries=lambda layer, q_BTHD: queries[layer].append(q_BTHD[0].clone()),
    )
    tails = [torch.cat(blocks) for blocks in queries]
    return AskedPrompt(
        keys=[kv.keys_NGD for kv in full.layer_kv],
        window_queries=[q_THD[:window] for q_THD in tails],
        answer_queries=[q_THD[window - 1 :] for q_THD in tails],
    )


@torch.inference_mode()
def oracle_scores(asked: AskedPrompt, switches: OracleSwitches) -> Tensor:
    """The oracle's score of each prompt token, float32 [L]."""
    num_heads = asked.answer_queries[0].shape[1]
    block = max(1, _LOGITS // (num_heads * asked.prompt_tokens))
    total_L = torch.zeros(asked.prompt_tokens, dtype=torch.float64, device=asked.keys[0].device)
    num_asking = asked.answer_queries[0].shape[0]
    for start in range(0, num_asking, block):
        rows = slice(start, start + block)
        by_layer = (
            _largest_over_heads(q_AHD[rows], k_LGD, switches)
            for q_AHD, k_LGD in zip(asked.answer_queries, asked.keys, strict=True)
        )
        total_L += reduce(torch.maximum, by_layer).sum(dim=0, dtype=torch.float64)
    mean_1L = (total_L / num_asking).float()[None]
    kernel = switches.pool_kernel
    return functional.avg_pool1d(mean_1L, kernel, stride=1, padding=kernel // 2)[0]


def _largest_over_heads(q_AHD: Tensor, k_LGD: Tensor, switches: OracleSwitches) -> Tensor:
    """The largest value that any head gives each prompt token, float32 [A, L]."""
    num_asking, num_heads, head_dim = q_AHD.shape
    num_groups = k_LGD.shape[1]
    q_GRD = q_AHD.float().transpose(0, 1).reshape(num_groups, -1, head_dim)
    scores_GRL = (q_GRD * (1.0 / math.sqrt(head_dim))) @ k_LGD.float().permute(1, 2, 0)
    if switches.softmax:
        scores_GRL = scores_GRL.softmax(dim=-1)
    if switches.zhead:
        scores_GRL = scores_GRL - scores_GRL.mean(dim=-1, keepdim=True)
        scores_GRL /= scores_GRL.square().mean(dim=-1, keepdim=True).sqrt() + _STD_FLOOR
    return scores_GRL.view(num_heads, num_asking, -1).amax(dim=0)
