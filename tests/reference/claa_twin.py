"""CLAA prefill written as plainly as possible: the slow twin that the engine is compared with.

Nothing is shared with the engine: weights come from a safetensors folder, every layer is dense
float64 maths over materialised probabilities, the sequence is pruned on the output of the pruning
layer, and positions are chosen one by one in Python. Llama family, default RoPE.

Shapes: T tokens, L prompt tokens, H query heads, G KV heads, D head size, C candidates.
"""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from shared.types.methods import Aggregation, KvSelect, PruningParams


@dataclass
class TwinResult:
    kept: list[int]
    logits: Tensor
    layer_positions: dict[int, list[list[int]]] = field(default_factory=dict)
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)


class SlowLlama:
    """Weights in float64 and the maths of one layer."""

    def __init__(self, folder: Path) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        self.weights: dict[str, Tensor] = {}
        for file in sorted(folder.glob("*.safetensors")):
            self.weights.update({k: v.double() for k, v in load_file(file).items()})
        self.num_layers = self.config["num_hidden_layers"]
        self.heads = self.config["num_attention_heads"]
        self.groups = self.config["num_key_value_heads"]
        self.head_dim = self.config.get("head_dim") or self.config["hidden_size"] // self.heads
        rope = self.config.get("rope_parameters") or self.config
        self.theta = rope["rope_theta"]

    def norm(self, x: Tensor, name: str) -> Tensor:
        eps = self.config["rms_norm_eps"]
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * self.weights[name]

    def turn(self, x_THD: Tensor, positions_T: Tensor) -> Tensor:
        half = self.head_dim // 2
        # Angles in float32, as checkpoints of this family are trained and served.
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim
        angles = positions_T.float()[:, None] * (1.0 / self.theta**exponents)
        cos, sin = angles.cos().double()[:, None], angles.sin().double()[:, None]
        a, b = x_THD[..., :half], x_THD[..., half:]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def layer(self, index: int, x_TE: Tensor, positions_T: Tensor) -> tuple[Tensor, ...]:
        """Output, probabilities [H, T, T], keys and values [T, G, D]."""
        prefix = f"model.layers.{index}."
        w = {k.removeprefix(prefix): v for k, v in self.weights.items() if k.startswith(prefix)}
        normed = self.norm(x_TE, prefix + "input_layernorm.weight")
        shape = (len(x_TE), -1, self.head_dim)
        q = self.turn((normed @ w["self_attn.q_proj.weight"].T).view(shape), positions_T)
        k = self.turn((normed @ w["self_attn.k_proj.weight"].T).view(shape), positions_T)
        v = (normed @ w["self_attn.v_proj.weight"].T).view(shape)
        share = self.heads // self.groups
        scores = torch.einsum("thd,shd->hts", q, k.repeat_interleave(share, 1))
        scores = scores / math.sqrt(self.head_dim)
        future = positions_T[None, :] > positions_T[:, None]
        probs_HTT = scores.masked_fill(future, -math.inf).softmax(-1)
        mixed = torch.einsum("hts,shd->thd", probs_HTT, v.repeat_interleave(share, 1))
        x_TE = x_TE + mixed.flatten(1) @ w["self_attn.o_proj.weight"].T
        normed = self.norm(x_TE, prefix + "post_attention_layernorm.weight")
        gate = torch.nn.functional.silu(normed @ w["mlp.gate_proj.weight"].T)
        x_TE = x_TE + (gate * (normed @ w["mlp.up_proj.weight"].T)) @ w["mlp.down_proj.weight"].T
        return x_TE, probs_HTT, k, v

    def logits(self, x_E: Tensor) -> Tensor:
        head = self.weights.get("lm_head.weight", self.weights["model.embed_tokens.weight"])
        return self.norm(x_E, "model.norm.weight") @ head.T


def twin_prefill(model: SlowLlama, token_ids: list[int], params: PruningParams) -> TwinResult:
    """The whole method, the long way; keep-all when the kept count is the prompt's length."""
    length = len(token_ids)
    kept_count = params.kept_count(length)
    pruned = kept_count < length
    window = min(params.observation_window, length)
    x_TE = model.weights["model.embed_tokens.weight"][torch.tensor(token_ids)]
    positions_T = torch.arange(length)
    result = TwinResult(kept=list(range(length)), logits=torch.empty(0))
    scores: dict[int, Tensor] = {}
    for index in range(model.num_layers):
        x_TE, probs_HTT, k, v = model.layer(index, x_TE, positions_T)
        result.keys[index], result.values[index] = k, v
        rows = [positions_T.tolist()]
        if pruned and index <= params.pruning_layer:
            scores[index] = pooled_scores(
                probs_HTT, groups=model.groups, window=window, kernel=params.pool_kernel
            )
        if pruned and params.deferred_layers <= index <= params.pruning_layer:
            own = scores[index] if params.kv_select is KvSelect.HEAD else scores[index].sum(0)[None]
            rows = [choose(row, length, kept_count, params.protect_first) for row in own.tolist()]
        result.layer_positions[index] = rows
        if pruned and index == params.pruning_layer:
            first = max(0, index - params.aggregation_window + 1)
            stack = torch.stack([scores[i] for i in range(first, index + 1)])
            ranking = aggregated(stack, params.aggregation)
            result.kept = choose(ranking.tolist(), length, kept_count, params.protect_first)
            positions_T = torch.tensor(result.kept)
            x_TE = x_TE[positions_T]
            if params.kv_select is KvSelect.SHARED:
                for held in range(params.deferred_layers, index + 1):
                    result.layer_positions[held] = [result.kept]
    result.logits = model.logits(x_TE[-1])
    _keep_chosen_kv(result, params, pruned=pruned)
    return result


def pooled_scores(probs_HTT: Tensor, *, groups: int, window: int, kernel: int) -> Tensor:
    """Window mass per query head, pooled with zero padding, summed over each group: [G, C]."""
    heads, length, _ = probs_HTT.shape
    per_head = []
    for head in range(heads):
        mass = probs_HTT[head, length - window :, : length - window].sum(0).tolist()
        pad = kernel // 2
        padded = [0.0] * pad + mass + [0.0] * pad
        per_head.append([sum(padded[i : i + kernel]) / kernel for i in range(len(mass))])
    return torch.tensor(per_head).double().view(groups, heads // groups, -1).sum(1)


def aggregated(stack_nGC: Tensor, how: Aggregation) -> Tensor:
    """One score a candidate, [C]."""
    if how is Aggregation.ZHEAD_MAX:
        rows = [standardised(row) for layer in stack_nGC for row in layer]
    elif how is Aggregation.ZSUM_MAX:
        rows = [standardised(layer.sum(0)) for layer in stack_nGC]
    elif how is Aggregation.RANK_MAX:
        rows = [ranks(layer.sum(0)) for layer in stack_nGC]
    else:
        rows = [layer.sum(0) for layer in stack_nGC]
    return torch.stack(rows).max(dim=0).values


def standardised(row_C: Tensor) -> Tensor:
    count = len(row_C)
    centred = row_C - row_C.mean()
    if count == 1:
        return centred
    return centred / (math.sqrt(float((centred**2).sum()) / (count - 1)) + 1e-8)


def ranks(row_C: Tensor) -> Tensor:
    order = sorted(range(len(row_C)), key=lambda i: (float(row_C[i]), i))
    out = torch.empty(len(row_C), dtype=torch.float64)
    for place, index in enumerate(order):
        out[index] = place
    return out


def choose(scores: list[float], length: int, kept: int, protect_first: bool) -> list[int]:
    """The window, and the best of the rest; ties to the lower index."""
    candidates = len(scores)
    budget = kept - (length - candidates)
    best = sorted(range(candidates), key=lambda i: (-scores[i], i))[:budget]
    if protect_first and 0 not in best:
        best[-1] = 0
    return sorted(best) + list(range(candidates, length))


def _keep_chosen_kv(result: TwinResult, params: PruningParams, *, pruned: bool) -> None:
    if not pruned:
        return
    for index in range(params.deferred_layers, params.pruning_layer + 1):
        rows = result.layer_positions[index]
        groups = result.keys[index].shape[1]
        rows = rows * groups if len(rows) == 1 else rows
        for store in (result.keys, result.values):
            whole = store[index]
            store[index] = torch.stack([whole[rows[g], g] for g in range(groups)], dim=1)
