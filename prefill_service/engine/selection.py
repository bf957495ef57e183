"""One prompt's scores and choices: what each layer ships, and which tokens go on past lp.

Shapes: L prompt tokens, W window rows, H query heads, G KV heads, D head size, R rows of positions,
N kept tokens, P protected positions.
"""

from typing import Protocol

import torch
from torch import Tensor

from prefill_service.engine.layer_steps import LayerKv, LayerRun
from prefill_service.engine.plan import PromptPlan
from prefill_service.engine.stopwatch import HostStopwatch, Stopwatch
from prefill_service.ranking.base import Observation
from prefill_service.ranking.select import cache_rows, kept_by_mass, select_positions
from shared.model.staging import sent_to
from shared.types.methods import KvSelect


class Choose(Protocol):
    """Scores to kept positions: `select_positions`, or its twin on a CUDA device."""

    def __call__(
        self,
        scores_RC: Tensor,
        *,
        prompt_tokens: int,
        kept_tokens: int,
        protect_first: bool,
        protected_P: Tensor | None = None,
    ) -> Tensor:
        """See `select_positions`."""


class PromptSelection:
    """Collects layer scores in order, up to the pruning layer.

    Where `mass` sets the count, no layer can choose before the pruning layer has scored: `kept`
    settles the plan, and the choices of earlier layers are asked for afterwards. Nothing else here
    waits for a device.

    Args:
        plan: what was decided about the prompt.
        device: where scores are; they are chosen from there.
        by_kernel: score and choose by Triton kernels.
        stopwatch: measures scoring and selecting.
    """

    def __init__(
        self,
        plan: PromptPlan,
        *,
        device: torch.device | None = None,
        by_kernel: bool = False,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        self._plan = plan
        self._by_kernel = by_kernel
        self._choose = _chooser(by_kernel=by_kernel)
        self._watch = HostStopwatch() if stopwatch is None else stopwatch
        self._protected_P = _positions(plan.protected, device=device)
        self._own_rows: dict[int, Tensor] = {}
        self._ranker = plan.ranker
        self._aggregated = self._ranker.aggregated_layers(plan.params.pruning_layer)
        self._layer_scores: list[Tensor] = []
        self._kept_N: Tensor | None = None
        self._shared_N: Tensor | None = None
        self.scores_C: Tensor | None = None
        """The scores that chose past the pruning layer, once `kept` was called; None: none did."""

    @property
    def plan(self) -> PromptPlan:
        """The plan; final once `kept` was called."""
        return self._plan

    @property
    def time(self) -> Stopwatch:
        """Tells the time spent on scoring and selecting so far."""
        return self._watch

    def window(self, layer: int) -> int:
        """Query rows that `observe` needs of this layer; 0 if none."""
        needed = layer in self._aggregated or self._chooses_own(layer) or self._trims_own(layer)
        return self._plan.window_tokens if needed else 0

    def observe(self, layer: int, ran: LayerRun) -> Tensor | None:
        """Scores a layer.

        Returns:
            The positions of this layer's own cache [R, N], or None if it has no choice of its own
            or makes it later.
        """
        if self.window(layer) == 0:
            return None
        with self._watch.lap():
            scores_GC = self._score(ran)
            if layer in self._aggregated:
                self._layer_scores.append(scores_GC)
            if not self._chooses_own(layer):
                return None
            rows_RC = cache_rows(scores_GC, self._plan.params.kv_select)
            if self._plan.params.mass is None:
                return self._select(rows_RC, count=self._plan.summary.slots)
            self._own_rows[layer] = rows_RC
            return None

    def kept(self) -> Tensor | None:
        """Positions that go on past the pruning layer, [N] ascending; its scores must be in.

        None where the method prunes caches alone.
        """
        if not self._aggregated:
            return None
        with self._watch.lap():
            scores_C = self.scores_C = self._ranker.aggregate(self._layer_scores)
            if self._plan.params.mass is not None:
                kept_tokens = kept_by_mass(
                    self._plan.params,
                    scores_C=scores_C,
                    layer_scores=self._layer_scores,
                    prompt_tokens=self._plan.prompt_tokens,
                    protected_P=self._protected_P,
                    earlier_tokens=self._plan.earlier_tokens,
                )
                self._plan = self._plan.settled(kept_tokens)
            summary = self._plan.summary
            kept_N = self._select(scores_C[None], count=summary.kept_tokens)[0]
            self._kept_N = self._shared_N = kept_N
            if summary.kv_tokens is not None:
                self._shared_N = self._select(scores_C[None], count=summary.kv_tokens)[0]
        self._layer_scores.clear()
        return kept_N

    def late_choice(self, layer: int) -> Tensor | None:
        """The choice [R, N] that `observe` put off for this layer; None if it has none of its own.

        The layer is forgotten.
        """
        rows_RC = self._own_rows.pop(layer, None)
        if rows_RC is None:
            return None
        with self._watch.lap():
            return self._select(rows_RC, count=self._plan.summary.slots)

    def shared(self) -> Tensor:
        """Positions [1, N] of every cache that has no choice of its own, once `kept` was called."""
        assert self._shared_N is not None, "the pruning layer has chosen"
        return self._shared_N[None]

    def trimmed(self, layer: int, ran: LayerRun) -> Tensor:
        """Slots [R, N] that the cache of a layer after the pruning layer keeps of the kept tokens.

        Args:
            layer: one of the plan's trimmed layers.
            ran: what it left: keys of the kept tokens, queries of the last W of them.
        """
        assert self._kept_N is not None, "the pruning layer has chosen"
        with self._watch.lap():
            if not self._trims_own(layer):
                return torch.searchsorted(self._kept_N, self.shared())
            return self._choose(
                cache_rows(self._score(ran), self._plan.params.kv_select),
                prompt_tokens=ran.kv.k_TGD.shape[0],
                kept_tokens=self._plan.summary.slots,
                protect_first=self._plan.params.protect_first,
                protected_P=torch.searchsorted(self._kept_N, self._protected_P),
            )

    def _score(self, ran: LayerRun) -> Tensor:
        """Scores [G, C] of a layer by the plan's method."""
        return self._ranker.score(
            Observation(
                q_WHD=ran.q_WHD,
                k_LGD=ran.kv.k_TGD,
                lse_WH=ran.lse_WH,
                by_kernel=self._by_kernel,
            )
        )

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
        return self._choose(
            scores_RC,
            prompt_tokens=self._plan.prompt_tokens,
            kept_tokens=count,
            protect_first=self._plan.params.protect_first,
            protected_P=self._protected_P,
        )


def _positions(positions: tuple[int, ...], *, device: torch.device | None) -> Tensor:
    """Positions as int64 [P] where scores are."""
    if not positions:
        return torch.empty(0, dtype=torch.int64, device=device)  # nothing to send, as a rule
    host_P = torch.tensor(positions, dtype=torch.int64)
    return host_P if device is None else sent_to(host_P, device)


def _chooser(*, by_kernel: bool) -> Choose:
    if not by_kernel:
        return select_positions
    from prefill_service.kernels.keep_highest import (  # noqa: PLC0415  Triton is optional
        keep_highest,
    )

    return keep_highest


def gathered(
    kv: LayerKv, positions_RN: Tensor, *, by_kernel: bool = False
) -> tuple[Tensor, Tensor]:
    """Keys and values at the positions of one row, or of one row a KV head; [N, G, D] each."""
    if by_kernel:
        from prefill_service.kernels.gather_slots import (  # noqa: PLC0415  Triton is optional
            gather_slots,
        )

        return gather_slots((kv.k_TGD, kv.v_TGD), positions_RN)
    if positions_RN.shape[0] == 1:
        return kv.k_TGD[positions_RN[0]], kv.v_TGD[positions_RN[0]]
    num_heads, head_dim = kv.k_TGD.shape[1:]
    assert positions_RN.shape[0] == num_heads, "one row of positions a KV head"
    index_NGD = positions_RN.t()[:, :, None].expand(-1, -1, head_dim)
    return kv.k_TGD.gather(0, index_NGD), kv.v_TGD.gather(0, index_NGD)
