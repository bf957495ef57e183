"""One prompt's scores and choices: what each layer ships, and which tokens go on past lp.

Shapes: L prompt tokens, W window rows, H query heads, G KV heads, D head size, R rows of positions,
N kept tokens.
"""

import time

import torch
from torch import Tensor

from prefill_service.engine.layer_steps import LayerKv
from prefill_service.engine.plan import PromptPlan
from prefill_service.ranking.base import Observation
from prefill_service.ranking.select import cache_rows, kept_by_mass, select_positions
from shared.types.methods import KvSelect


class PromptSelection:
    """Collects layer scores in order, up to the pruning layer.

    Where `mass` sets the count, no layer can choose before the pruning layer has scored: `kept`
    settles the plan, and the choices of earlier layers are asked for afterwards.
    """

    def __init__(self, plan: PromptPlan) -> None:
        self._plan = plan
        self._protected_P = torch.tensor(plan.protected, dtype=torch.int64)
        self._own_rows: dict[int, Tensor] = {}
        self._ranker = plan.ranker
        self._aggregated = self._ranker.aggregated_layers(plan.params.pruning_layer)
        self._layer_scores: list[Tensor] = []
        self._kept_N: Tensor | None = None
        self._shared_N: Tensor | None = None
        self.scores_C: Tensor | None = None
        """The scores that chose past the pruning layer, once `kept` was called; None: none did."""
        self.seconds = 0.0
        """Time spent on scoring and selecting so far."""

    @property
    def plan(self) -> PromptPlan:
        """The plan; final once `kept` was called."""
        return self._plan

    def window(self, layer: int) -> int:
        """Query rows that `observe` needs of this layer; 0 if none."""
        needed = layer in self._aggregated or self._chooses_own(layer) or self._trims_own(layer)
        return self._plan.window_tokens if needed else 0

    def observe(self, layer: int, *, q_WHD: Tensor, k_LGD: Tensor) -> Tensor | None:
        """Scores a layer.

        Returns:
            The positions of this layer's own cache [R, N], or None if it has no choice of its own
            or makes it later.
        """
        if self.window(layer) == 0:
            return None
        started = time.perf_counter()
        scores_GC = self._ranker.score(Observation(q_WHD=q_WHD, k_LGD=k_LGD))
        if layer in self._aggregated:
            self._layer_scores.append(scores_GC)
        own_RN = None
        if self._chooses_own(layer):
            rows_RC = cache_rows(scores_GC, self._plan.params.kv_select)
            if self._plan.params.mass is None:
                own_RN = self._select(rows_RC, count=self._plan.summary.slots)
            else:
                self._own_rows[layer] = rows_RC
        self.seconds += time.perf_counter() - started
        return own_RN

    def kept(self) -> Tensor | None:
        """Positions that go on past the pruning layer, [N] ascending; its scores must be in.

        None where the method prunes caches alone.
        """
        if not self._aggregated:
            return None
        started = time.perf_counter()
        scores_C = self.scores_C = self._ranker.aggregate(self._layer_scores)
        if self._plan.params.mass is not None:
            kept_tokens = kept_by_mass(
                self._plan.params,
                scores_C=scores_C,
                layer_scores=self._layer_scores,
                prompt_tokens=self._plan.prompt_tokens,
                protected_P=self._protected_P.to(scores_C.device),
            )
            self._plan = self._plan.settled(kept_tokens)
        summary = self._plan.summary
        kept_N = self._select(scores_C[None], count=summary.kept_tokens)[0]
        self._kept_N = self._shared_N = kept_N
        if summary.kv_tokens is not None:
            self._shared_N = self._select(scores_C[None], count=summary.kv_tokens)[0]
        self._layer_scores.clear()
        self.seconds += time.perf_counter() - started
        return kept_N

    def late_choice(self, layer: int) -> Tensor | None:
        """The choice [R, N] that `observe` put off for this layer; None if it has none of its own.

        The layer is forgotten.
        """
        rows_RC = self._own_rows.pop(layer, None)
        if rows_RC is None:
            return None
        started = time.perf_counter()
        own_RN = self._select(rows_RC, count=self._plan.summary.slots)
        self.seconds += time.perf_counter() - started
        return own_RN

    def shared(self) -> Tensor:
        """Positions [1, N] of every cache that has no choice of its own, once `kept` was called."""
        assert self._shared_N is not None, "the pruning layer has chosen"
        return self._shared_N[None]

    def trimmed(self, layer: int, *, q_WHD: Tensor, k_TGD: Tensor) -> Tensor:
        """Slots [R, N] that the cache of a layer after the pruning layer keeps of the kept tokens.

        Args:
            layer: one of the plan's trimmed layers.
            q_WHD: its queries of the last W kept tokens.
            k_TGD: its keys of all of them.
        """
        assert self._kept_N is not None, "the pruning layer has chosen"
        started = time.perf_counter()
        if self._trims_own(layer):
            scores_GC = self._ranker.score(Observation(q_WHD=q_WHD, k_LGD=k_TGD))
            slots_RN = select_positions(
                cache_rows(scores_GC, self._plan.params.kv_select),
                prompt_tokens=k_TGD.shape[0],
                kept_tokens=self._plan.summary.slots,
                protect_first=self._plan.params.protect_first,
                protected_P=torch.searchsorted(
                    self._kept_N, self._protected_P.to(self._kept_N.device)
                ),
            )
        else:
            slots_RN = torch.searchsorted(self._kept_N, self.shared())
        self.seconds += time.perf_counter() - started
        return slots_RN

    def _trims_own(self, layer: int) -> bool:
        return (
            layer in self._plan.trimmed_layers
            and self._plan.params.kv_select is not KvSelect.SHARED
        )

    def _chooses_own(self, layer: int) -> bool:
        return (
            layer in self._plan.held_layers and self._plan.params.kv_select is not KvSelect.SHARED
        )

    def _select(self, scores_RC: Tensor, *, count: int) -> Tensor:
        return select_positions(
            scores_RC,
            prompt_tokens=self._plan.prompt_tokens,
            kept_tokens=count,
            protect_first=self._plan.params.protect_first,
            protected_P=self._protected_P.to(scores_RC.device),
        )


def gathered(kv: LayerKv, positions_RN: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values at the positions of one row, or of one row a KV head; [N, G, D] each."""
    if positions_RN.shape[0] == 1:
        return kv.k_TGD[positions_RN[0]], kv.v_TGD[positions_RN[0]]
    num_heads, head_dim = kv.k_TGD.shape[1:]
    assert positions_RN.shape[0] == num_heads, "one row of positions a KV head"
    index_NGD = positions_RN.t()[:, :, None].expand(-1, -1, head_dim)
    return kv.k_TGD.gather(0, index_NGD), kv.v_TGD.gather(0, index_NGD)
