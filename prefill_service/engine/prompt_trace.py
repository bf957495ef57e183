"""Which tokens of a prompt each layer keeps, for a request that asked.

Shapes: L prompt tokens, C tokens before the observation window, R rows of positions, N kept tokens,
B columns.
"""

import math

import torch
from torch import Tensor

from prefill_service.engine.observer import KvObserver
from prefill_service.engine.plan import PromptPlan
from shared.types.trace import MAX_SPANS, PROMPT_COLUMNS, LayoutTrace, PromptTrace, Ranges


class TracedPrompt:
    """An observer around another one: also keeps the positions of every layout.

    Args:
        inner: is told everything.
    """

    def __init__(self, inner: KvObserver) -> None:
        self._inner = inner
        self._positions_RN: dict[int, Tensor] = {}

    def settled(self, plan: PromptPlan) -> None:
        """See `KvObserver.settled`."""
        self._inner.settled(plan)

    def kv_final(
        self, *, layer: int, first_slot: int, keys_NGD: Tensor, values_NGD: Tensor
    ) -> None:
        """See `KvObserver.kv_final`."""
        self._inner.kv_final(
            layer=layer, first_slot=first_slot, keys_NGD=keys_NGD, values_NGD=values_NGD
        )

    def positions_final(self, *, layout: int, positions_RN: Tensor) -> None:
        """Keeps a layout's positions."""
        self._positions_RN[layout] = positions_RN
        self._inner.positions_final(layout=layout, positions_RN=positions_RN)

    def progress(self, *, done_tokens: int) -> None:
        """See `KvObserver.progress`."""
        self._inner.progress(done_tokens=done_tokens)

    def trace(self, plan: PromptPlan, *, scores_C: Tensor | None) -> PromptTrace:
        """What was kept, once the prompt has run.

        Args:
            plan: the final plan.
            scores_C: the scores that chose past the pruning layer; None when there are none.
        """
        column_tokens = max(1, math.ceil(plan.prompt_tokens / PROMPT_COLUMNS))
        layouts = [
            self._layout(plan, layout, column_tokens=column_tokens)
            for layout in sorted(set(plan.slab.layer_layouts))
        ]
        return PromptTrace(
            prompt_tokens=plan.prompt_tokens,
            column_tokens=column_tokens,
            score=_column_scores(plan, scores_C, column_tokens=column_tokens),
            layouts=_bounded(layouts),
        )

    def _layout(self, plan: PromptPlan, layout: int, *, column_tokens: int) -> LayoutTrace:
        length = plan.prompt_tokens
        positions_RN = self._positions_RN.get(layout)
        if positions_RN is None:
            kept_L = torch.ones(length)
            kept_tokens = length
        else:
            rows, kept_tokens = positions_RN.shape
            flat = positions_RN.flatten().to("cpu", torch.int64)
            kept_L = torch.bincount(flat, minlength=length) / rows
        layers = [i for i, used in enumerate(plan.slab.layer_layouts) if used == layout]
        return LayoutTrace(
            layers=tuple(layers),
            kept_tokens=kept_tokens,
            share=tuple(_column_means(kept_L, column_tokens).tolist()),
            spans=_spans(kept_L > 0),
        )


def _bounded(layouts: list[LayoutTrace]) -> tuple[LayoutTrace, ...]:
    if sum(len(layout.spans or ()) for layout in layouts) <= MAX_SPANS:
        return tuple(layouts)
    return tuple(
        LayoutTrace(layers=each.layers, kept_tokens=each.kept_tokens, share=each.share, spans=None)
        for each in layouts
    )


def _column_scores(
    plan: PromptPlan, scores_C: Tensor | None, *, column_tokens: int
) -> tuple[float, ...] | None:
    if scores_C is None:
        return None
    ranks_L = torch.ones(plan.prompt_tokens)
    # Best first, and of equals the earlier one first, as the selection has them.
    order = scores_C.to("cpu").argsort(descending=True, stable=True)
    ranks_L[order] = torch.linspace(1.0, 0.0, steps=order.shape[0])
    ranks_L[list(plan.protected)] = 1.0
    if plan.params.protect_first:
        ranks_L[0] = 1.0
    columns_BT = _columns(ranks_L, column_tokens, fill=0.0)
    return tuple(columns_BT.amax(dim=1).tolist())


def _column_means(values_L: Tensor, column_tokens: int) -> Tensor:
    sums_B = _columns(values_L, column_tokens, fill=0.0).sum(dim=1)
    return sums_B / _columns(torch.ones_like(values_L), column_tokens, fill=0.0).sum(dim=1)


def _columns(values_L: Tensor, column_tokens: int, *, fill: float) -> Tensor:
    missing = -values_L.shape[0] % column_tokens
    padded = torch.nn.functional.pad(values_L, (0, missing), value=fill)
    return padded.view(-1, column_tokens)


def _spans(kept_L: Tensor) -> Ranges:
    edges = torch.diff(torch.nn.functional.pad(kept_L.to(torch.int8), (1, 1)))
    starts = (edges == 1).nonzero().flatten().tolist()
    ends = (edges == -1).nonzero().flatten().tolist()
    return tuple(zip(starts, ends, strict=True))
