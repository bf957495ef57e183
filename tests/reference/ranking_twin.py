"""Every ranking method written as plainly as possible: the slow twins of the family.

Like `claa_twin`: float64, whole probability matrices, one token at a time, nothing of the engine.

Shapes: T tokens, L prompt tokens, H query heads, G KV heads, D head size, C candidates.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from shared.types.methods import KvSelect, PruningParams
from tests.reference.claa_twin import SlowLlama, choose, pooled_scores


@dataclass
class TwinRun:
    kept: list[int]
    logits: Tensor
    next_position: int
    rows: list[list[list[int]]] = field(default_factory=list)
    """Positions of each layer's cache."""


def all_layers(
    model: SlowLlama,
    ids: list[int],
    positions: list[int],
    *,
    lp: int = -1,
    kept: list[int] | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """Output of the last layer, and probabilities [H, T, T] of every layer; pruned after `lp`."""
    x_TE = model.weights["model.embed_tokens.weight"][torch.tensor(ids)]
    where_T, probs = torch.tensor(positions), []
    for index in range(model.num_layers):
        x_TE, probs_HTT, _, _ = model.layer(index, x_TE, where_T)
        probs.append(probs_HTT)
        if index == lp and kept is not None:
            x_TE, where_T = x_TE[torch.tensor(kept)], where_T[torch.tensor(kept)]
    return x_TE, probs


def layer_inputs(model: SlowLlama, ids: list[int]) -> list[Tensor]:
    x_TE = model.weights["model.embed_tokens.weight"][torch.tensor(ids)]
    inputs = []
    for index in range(model.num_layers):
        inputs.append(x_TE)
        x_TE = model.layer(index, x_TE, torch.arange(len(ids)))[0]
    return inputs


def queries_and_keys(model: SlowLlama, index: int, x_TE: Tensor) -> tuple[Tensor, Tensor]:
    """Rotated queries [T, H, D] and keys [T, H, D], keys repeated for their query heads."""
    prefix = f"model.layers.{index}."
    normed = model.norm(x_TE, prefix + "input_layernorm.weight")
    where_T = torch.arange(len(x_TE))

    def turned(name: str) -> Tensor:
        weight = model.weights[f"{prefix}self_attn.{name}.weight"]
        return model.turn((normed @ weight.T).view(len(x_TE), -1, model.head_dim), where_T)

    keys = turned("k_proj").repeat_interleave(model.heads // model.groups, 1)
    return turned("q_proj"), keys


def pool(values: list[float], kernel: int) -> list[float]:
    pad = kernel // 2
    padded = [0.0] * pad + values + [0.0] * pad
    return [sum(padded[i : i + kernel]) / kernel for i in range(len(values))]


def gemfilter_scores(model: SlowLlama, ids: list[int], params: PruningParams) -> list[float]:
    x_TE = layer_inputs(model, ids)[params.pruning_layer]
    q_THD, k_THD = queries_and_keys(model, params.pruning_layer, x_TE)
    raw = [float((q_THD[-1] * k_THD[i]).sum()) for i in range(len(ids))]
    return pool(raw, params.pool_kernel)


def self_information_scores(model: SlowLlama, ids: list[int], params: PruningParams) -> list[float]:
    hidden_TE, _ = all_layers(model, ids, list(range(len(ids))))
    scores = [0.0] + [
        -float(model.logits(hidden_TE[i - 1]).log_softmax(-1)[ids[i]]) for i in range(1, len(ids))
    ]
    return scores[: len(ids) - params.observation_window]


def speculative_scores(
    draft: SlowLlama, ids: list[int], params: PruningParams, *, steps: int, chunk: int, forced: bool
) -> list[float]:
    length, written, per_step = len(ids), list(ids), []
    for _ in range(steps):
        inputs = layer_inputs(draft, written)
        best = [-math.inf] * length
        for index, x_TE in enumerate(inputs):
            q_THD, k_THD = queries_and_keys(draft, index, x_TE)
            for head in range(draft.heads):
                logits_L = (k_THD[:length, head] @ q_THD[-1, head]) / math.sqrt(draft.head_dim)
                pooled = pool(logits_L.softmax(-1).tolist(), params.pool_kernel)
                best = [max(a, b) for a, b in zip(best, pooled, strict=True)]
        per_step.append(best)
        out_TE, _ = all_layers(draft, written, list(range(len(written))))
        token = int(draft.logits(out_TE[-1]).argmax())
        if token == draft.config["eos_token_id"]:
            break
        written.append(token)
    mean = [sum(step[i] for step in per_step) / len(per_step) for i in range(length)]
    chunks = [mean[i : i + chunk] for i in range(0, length, chunk)]
    scores = [sum(part) / len(part) for part in chunks for _ in part]
    return scores[: length - params.observation_window] if forced else scores


def twin_chosen_first(
    model: SlowLlama, ids: list[int], params: PruningParams, scores: list[float], *, compact: bool
) -> TwinRun:
    """The second pass on the chosen tokens."""
    kept = pick(scores, len(ids), params.kept_count(len(ids)), params)
    positions = list(range(len(kept))) if compact else kept
    out_TE, _ = all_layers(model, [ids[i] for i in kept], positions)
    return TwinRun(
        kept=kept,
        logits=model.logits(out_TE[-1]),
        next_position=len(kept) if compact else len(ids),
        rows=[[positions]] * model.num_layers,
    )


def twin_pruned(
    model: SlowLlama, ids: list[int], params: PruningParams, scores: list[float]
) -> TwinRun:
    """Pruned after lp by given scores, which also choose every cache from layer m on."""
    length, lp = len(ids), params.pruning_layer
    kept = pick(scores, length, params.kept_count(length), params)
    cache = pick(scores, length, params.kv_count(length), params)
    out_TE, _ = all_layers(model, ids, list(range(length)), lp=lp, kept=kept)
    rows = []
    for index in range(model.num_layers):
        whole = index < min(params.deferred_layers, lp + 1)
        late = index > lp and len(cache) >= len(kept)
        rows.append([list(range(length)) if whole else kept if late else cache])
    return TwinRun(kept=kept, logits=model.logits(out_TE[-1]), next_position=length, rows=rows)


def window_rows(
    model: SlowLlama, probs_HTT: Tensor, params: PruningParams, count: int
) -> list[list[int]]:
    """One layer's own choice, by KV head or for the layer, as indices into its tokens."""
    length = probs_HTT.shape[1]
    own = pooled_scores(
        probs_HTT,
        groups=model.groups,
        window=params.observation_window,
        kernel=params.pool_kernel,
    )
    rows = own if params.kv_select is KvSelect.HEAD else own.sum(0)[None]
    return [pick(row.tolist(), length, count, params) for row in rows]


def twin_fastkv(model: SlowLlama, ids: list[int], params: PruningParams) -> TwinRun:
    """One layer chooses the sequence; every layer chooses its own cache."""
    length, lp = len(ids), params.pruning_layer
    _, probs = all_layers(model, ids, list(range(length)))
    own = pooled_scores(
        probs[lp], groups=model.groups, window=params.observation_window, kernel=params.pool_kernel
    )
    kept = pick(own.sum(0).tolist(), length, params.kept_count(length), params)
    out_TE, probs = all_layers(model, ids, list(range(length)), lp=lp, kept=kept)
    count = params.kv_count(length)
    rows = []
    for index in range(model.num_layers):
        if index <= lp:
            rows.append(window_rows(model, probs[index], params, count))
        elif count >= len(kept):
            rows.append([kept])
        else:
            slots = window_rows(model, probs[index], params, count)
            rows.append([[kept[i] for i in row] for row in slots])
    return TwinRun(kept=kept, logits=model.logits(out_TE[-1]), next_position=length, rows=rows)


def twin_snapkv(model: SlowLlama, ids: list[int], params: PruningParams) -> TwinRun:
    """Nothing leaves the sequence; every layer chooses its own cache."""
    out_TE, probs = all_layers(model, ids, list(range(len(ids))))
    count = params.kept_count(len(ids))
    return TwinRun(
        kept=list(range(len(ids))),
        logits=model.logits(out_TE[-1]),
        next_position=len(ids),
        rows=[window_rows(model, layer, params, count) for layer in probs],
    )


def pick(scores: list[float], length: int, count: int, params: PruningParams) -> list[int]:
    if count >= length:
        return list(range(length))
    return choose(scores, length, count, params.protect_first)
