"""Variants of one prompt on top of one dense pass: what each method chooses, and what comes of it.

Shapes: N KV slots or kept tokens, R rows of positions (1, or one a KV head), G KV heads, D head
size, L prompt tokens, C candidates, E hidden width, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from prefill_service.engine.dense_pass import DensePass, onward
from prefill_service.engine.layer_steps import KeptShare, LayerKv, LayerRun
from prefill_service.engine.prompt_view import DenseView
from prefill_service.engine.selection import gathered
from prefill_service.ranking.base import Observation, PromptRanker, Ranker, SideInputs
from prefill_service.ranking.registry import build_ranker, check_mass
from prefill_service.ranking.select import cache_rows, kept_by_mass, select_positions
from shared.errors import ConfigError
from shared.model.config import ModelConfig
from shared.types.methods import KvSelect, PruningParams


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerCache:
    """One layer's KV after the prompt; rows ascend, keys are rotated."""

    keys_NGD: Tensor
    """Keys; may be shared with other variants: read only."""
    values_NGD: Tensor
    """Values."""
    positions_RN: Tensor
    """Rotary positions of the slots, int64: one row, or one a KV head."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EvaluatedPrompt:
    """What one variant makes of a prompt."""

    params: PruningParams
    """The variant, as its method settles it."""
    logits_V: Tensor
    """Float32 logits of the first token of the answer."""
    kept_N: Tensor
    """Prompt positions that ran through the last layers, int64, ascending; always original."""
    next_position: int
    """Position of the first token of the answer: L, or N where positions are compact."""
    layer_kv: list[LayerCache]
    """KV of every layer."""
    score_L: Tensor | None
    """Score that chose `kept_N`, float32, NaN for tokens that were not ranked; None: the sequence
    was not pruned."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Variant:
    """One method with its parameters and counts."""

    ranker: Ranker | PromptRanker
    """The method."""
    params: PruningParams
    """As the method settles them."""
    prompt_tokens: int
    """L."""
    kept: int
    """Tokens that are kept of the sequence (of the caches, when the sequence stays whole)."""
    kv: int
    """KV entries of a layer that holds a choice."""
    num_layers: int
    """Layers of the model."""

    @classmethod
    def build(
        cls, config: ModelConfig, params: PruningParams, side: SideInputs, *, prompt_tokens: int
    ) -> "Variant":
        """Settles a variant for a prompt.

        Raises:
            ConfigError: an unknown method, a missing side input, or a layer that does not exist.
        """
        settled = build_ranker(params.ranker, params, side).settled(config.num_layers)
        if settled.pruning_layer >= config.num_layers:
            raise ConfigError(
                f"pruning_layer {settled.pruning_layer} does not exist in a model of "
                f"{config.num_layers} layers; choose one of 0..{config.num_layers - 1}"
            )
        ranker = build_ranker(params.ranker, settled, side)
        kept = ranker.kept_count(prompt_tokens)
        if kept < prompt_tokens:
            check_mass(ranker, settled)
        return cls(
            ranker=ranker,
            params=settled,
            prompt_tokens=prompt_tokens,
            kept=kept,
            kv=kept if settled.kv_rate is None else settled.kv_count(prompt_tokens),
            num_layers=config.num_layers,
        )

    def settled(self, scores_C: Tensor, layer_scores: Sequence[Tensor]) -> "Variant":
        """The variant with the counts that its mass comes to, where it has one."""
        if self.params.mass is None:
            return self
        kept = kept_by_mass(
            self.params,
            scores_C=scores_C,
            layer_scores=layer_scores,
            prompt_tokens=self.prompt_tokens,
        )
        return replace(self, kept=kept, kv=kept)

    @property
    def keeps_all(self) -> bool:
        """Whether nothing is dropped anywhere."""
        return min(self.kept, self.kv) >= self.prompt_tokens

    @property
    def depth(self) -> int:
        """Layers that must run on the whole prompt."""
        if self.keeps_all:
            return self.num_layers - 1
        if isinstance(self.ranker, PromptRanker):
            return self.ranker.dense_layers(self.num_layers)
        return self.params.pruning_layer

    @property
    def window(self) -> int:
        """W, or the whole prompt when that is shorter."""
        return min(self.params.observation_window, self.prompt_tokens)


class Family:
    """Runs variants of one prompt.

    Args:
        dense: deep enough for every variant that will be run, with the inputs of their pruning
            layers and their window.
        view: for methods that rank before the main pass.
    """

    def __init__(self, dense: DensePass, *, view: DenseView) -> None:
        self._dense = dense
        self._view = view
        self._scores: dict[tuple[str, int, int, int, int], Tensor] = {}

    def run(self, variant: Variant) -> EvaluatedPrompt:
        """One variant."""
        if variant.keeps_all:
            return self._keep_all(variant)
        if isinstance(variant.ranker, PromptRanker):
            return self._choose_first(variant, variant.ranker)
        return self._prune(variant, variant.ranker)

    def _layer_scores(self, variant: Variant, ranker: Ranker, layer: int) -> Tensor:
        """Scores [G, C] of a layer of the dense pass, computed once for variants that agree."""
        params = variant.params
        key = (ranker.name, layer, variant.window, params.pool_kernel, params.seed)
        if key not in self._scores:
            self._scores[key] = ranker.score(
                Observation(
                    q_WHD=self._dense.q_window(layer, variant.window),
                    k_LGD=self._dense.kv(layer).k_TGD,
                )
            )
        return self._scores[key]

    def _keep_all(self, variant: Variant) -> EvaluatedPrompt:
        return EvaluatedPrompt(
            params=variant.params,
            logits_V=self._dense.logits(),
            kept_N=self._dense.positions_T,
            next_position=variant.prompt_tokens,
            layer_kv=[self._whole(layer) for layer in range(variant.num_layers)],
            score_L=None,
        )

    def _choose_first(self, variant: Variant, ranker: PromptRanker) -> EvaluatedPrompt:
        dense = self._dense
        score_C = ranker.score_prompt(self._view).to(dense.ids_T.device)
        kept_N = _selected(score_C[None], variant, count=variant.kept)[0]
        next_position = variant.kept if ranker.compact else variant.prompt_tokens
        positions_N = dense.positions_T[: variant.kept] if ranker.compact else kept_N
        rope = dense.model.rope(positions_N, context_tokens=next_position)
        x_NE = dense.model.embed(dense.ids_T[kept_N])
        x_1E, layers = onward(dense, x_NE, rope=rope, first=0, window=1)
        return EvaluatedPrompt(
            params=variant.params,
            logits_V=dense.model.logits(x_1E)[0],
            kept_N=kept_N,
            next_position=next_position,
            layer_kv=[_cache(seen.kv, positions_N) for seen in layers],
            score_L=_with_unranked(score_C, variant.prompt_tokens),
        )

    def _prune(self, variant: Variant, ranker: Ranker) -> EvaluatedPrompt:
        dense, lp = self._dense, variant.params.pruning_layer
        layers = ranker.aggregated_layers(lp)
        score_C, kept_N = None, dense.positions_T
        if layers:
            layer_scores = [self._layer_scores(variant, ranker, layer) for layer in layers]
            score_C = ranker.aggregate(layer_scores)
            variant = variant.settled(score_C, layer_scores)
            kept_N = _selected(score_C[None], variant, count=variant.kept)[0]
        rope = dense.rope.rows(kept_N)
        rows = slice(-1, None) if lp == variant.num_layers - 1 else slice(None)
        onward_N = kept_N[rows]
        kept = KeptShare(rows=slice(0, onward_N.shape[0]), positions_N=onward_N, kv=dense.kv(lp))
        x_NE = dense.steps.chosen(
            dense.model.layers[lp], dense.input(lp)[onward_N], rope.rows(rows), kept=[kept]
        )
        x_1E, after = onward(dense, x_NE, rope=rope, first=lp + 1, window=variant.window)
        choice = _CacheChoice(variant, ranker, score_C=score_C, kept_N=kept_N)
        whole = min(variant.params.deferred_layers, lp + 1)
        held = [self._held(variant, ranker, choice, layer) for layer in range(whole, lp + 1)]
        return EvaluatedPrompt(
            params=variant.params,
            logits_V=dense.model.logits(x_1E)[0],
            kept_N=kept_N,
            next_position=variant.prompt_tokens,
            layer_kv=[
                *(self._whole(layer) for layer in range(whole)),
                *held,
                *(choice.after(seen) for seen in after),
            ],
            score_L=None if score_C is None else _with_unranked(score_C, variant.prompt_tokens),
        )

    def _held(
        self, variant: Variant, ranker: Ranker, choice: "_CacheChoice", layer: int
    ) -> LayerCache:
        positions_RN = choice.shared_RN
        if positions_RN is None:
            scores_GC = self._layer_scores(variant, ranker, layer)
            positions_RN = _selected(
                cache_rows(scores_GC, variant.params.kv_select), variant, count=variant.kv
            )
        return _gathered_cache(self._dense.kv(layer), positions_RN, positions_RN)

    def _whole(self, layer: int) -> LayerCache:
        return _cache(self._dense.kv(layer), self._dense.positions_T)


class _CacheChoice:
    """Which entries the caches of one pruned prompt hold.

    `shared_RN` is the one choice of all layers, or None when layers choose for themselves.
    """

    def __init__(
        self, variant: Variant, ranker: Ranker, *, score_C: Tensor | None, kept_N: Tensor
    ) -> None:
        self._variant = variant
        self._ranker = ranker
        self._kept_N = kept_N
        self.shared_RN: Tensor | None = None
        if variant.params.kv_select is KvSelect.SHARED:
            assert score_C is not None, "a method that shares a choice makes one"
            self.shared_RN = _selected(score_C[None], variant, count=variant.kv)

    def after(self, seen: LayerRun) -> LayerCache:
        """The cache of a layer that ran on the kept tokens: all of them, or its choice."""
        variant, kept = self._variant, int(self._kept_N.shape[0])
        if variant.kv >= kept:
            return _cache(seen.kv, self._kept_N)
        if self.shared_RN is not None:
            slots_1N = torch.searchsorted(self._kept_N, self.shared_RN)
        else:
            scores_GC = self._ranker.score(Observation(q_WHD=seen.q_WHD, k_LGD=seen.kv.k_TGD))
            slots_1N = select_positions(
                cache_rows(scores_GC, variant.params.kv_select),
                prompt_tokens=kept,
                kept_tokens=variant.kv,
                protect_first=variant.params.protect_first,
            )
        return _gathered_cache(seen.kv, slots_1N, self._kept_N[slots_1N])


def _selected(scores_RC: Tensor, variant: Variant, *, count: int) -> Tensor:
    return select_positions(
        scores_RC,
        prompt_tokens=variant.prompt_tokens,
        kept_tokens=count,
        protect_first=variant.params.protect_first,
    )


def _cache(kv: LayerKv, positions_N: Tensor) -> LayerCache:
    return LayerCache(keys_NGD=kv.k_TGD, values_NGD=kv.v_TGD, positions_RN=positions_N[None])


def _gathered_cache(kv: LayerKv, slots_RN: Tensor, positions_RN: Tensor) -> LayerCache:
    keys_NGD, values_NGD = gathered(kv, slots_RN)
    return LayerCache(keys_NGD=keys_NGD, values_NGD=values_NGD, positions_RN=positions_RN)


def _with_unranked(score_C: Tensor, prompt_tokens: int) -> Tensor:
    unranked = prompt_tokens - score_C.shape[0]
    return functional.pad(score_C.float(), (0, unranked), value=math.nan)
