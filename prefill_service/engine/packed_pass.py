"""The forward pass of one or several prompts: exact CLAA prefill in two phases, with shortcuts.

Layers before the pruning layer lp run on every token. At lp every token gets keys and values, but
only the chosen ones get queries, attention and MLP; the layers after it run on those at their
original positions. The last layer computes one row a prompt, the only one whose logits are needed.
Tokens go through a layer in blocks and layers follow one another, so that a layer's whole KV exists
only while it is scored, and the unpruned layers leave block by block.

The rows of all prompts lie side by side. Between two layers the rows of prompts that ended are
dropped, and so are the tokens that were not chosen; a prompt alone is a pass of one.

Shapes: T rows of all prompts, M prompts, N rows that go on, E hidden width, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate, groupby

import torch
from torch import Tensor

from prefill_service.engine.layer_steps import (
    KeptShare,
    LayerRun,
    PromptSteps,
    Share,
    joined,
)
from prefill_service.engine.pace import Pace, mark_for
from prefill_service.engine.prompt_pass import PromptPass
from shared.model.rope import RopeTable
from shared.model.transformer import Transformer


class AllEndedError(Exception):
    """No prompt of the pass is left; never leaves the engine."""


class _Way(Enum):
    """How a layer is run for a prompt."""

    WHOLE = "whole"
    PRUNING = "pruning"
    LAST = "last"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    """Some prompts' rows, side by side."""

    prompts: list[PromptPass]
    lengths: list[int]
    """Rows of each."""
    x_TE: Tensor
    rope: RopeTable

    @property
    def spans(self) -> list[slice]:
        """Where each prompt's rows are."""
        ends = list(accumulate(self.lengths))
        return [slice(end - n, end) for end, n in zip(ends, self.lengths, strict=True)]

    def some(self, wanted: Callable[[PromptPass], bool]) -> "_Rows":
        """Those of some prompts, at least one; the same object if it is all of them."""
        inside = [i for i, prompt in enumerate(self.prompts) if wanted(prompt)]
        if not inside:
            raise AllEndedError
        if len(inside) == len(self.prompts):
            return self
        spans = self.spans
        return _Rows(
            prompts=[self.prompts[i] for i in inside],
            lengths=[self.lengths[i] for i in inside],
            x_TE=joined([self.x_TE[spans[i]] for i in inside]),
            rope=RopeTable.joined([self.rope.rows(spans[i]) for i in inside]),
        )

    def ways(self, way: Callable[[PromptPass], _Way]) -> list[tuple[_Way, "_Rows"]]:
        """Split between neighbours that go different ways; rows are views."""
        kinds = [way(prompt) for prompt in self.prompts]
        if len(set(kinds)) == 1:
            return [(kinds[0], self)]
        spans, found = self.spans, []
        for kind, group in groupby(range(len(self.prompts)), key=lambda i: kinds[i]):
            inside = list(group)
            own = slice(inside[0], inside[-1] + 1)
            rows = slice(spans[inside[0]].start, spans[inside[-1]].stop)
            part = _Rows(
                prompts=self.prompts[own],
                lengths=self.lengths[own],
                x_TE=self.x_TE[rows],
                rope=self.rope.rows(rows),
            )
            found.append((kind, part))
        return found

    @staticmethod
    def beside(parts: Sequence["_Rows"]) -> "_Rows":
        """Parts put together again, in order."""
        return _Rows(
            prompts=[prompt for part in parts for prompt in part.prompts],
            lengths=[length for part in parts for length in part.lengths],
            x_TE=joined([part.x_TE for part in parts]),
            rope=RopeTable.joined([part.rope for part in parts]),
        )


class PackedPass:
    """One pass through the model.

    Args:
        model: the decoder.
        steps: how its layers are run.
        prompts: whose tokens; those that ended already are left out.
    """

    def __init__(
        self, model: Transformer, *, steps: PromptSteps, prompts: Sequence[PromptPass]
    ) -> None:
        self._model = model
        self._steps = steps
        # Those that are pruned at one layer stay side by side: it splits in three at most, those
        # that were pruned before it, its own, and those that will be or are not.
        last = model.config.num_layers
        self._prompts = sorted(
            (prompt for prompt in prompts if not prompt.ended),
            key=lambda prompt: min(i for i in range(last + 1) if i == last or prompt.prunes_at(i)),
        )

    def forward(self, ids: dict[PromptPass, Tensor]) -> tuple[list[PromptPass], Tensor]:
        """All layers, enqueued on a device.

        Args:
            ids: tokens of each prompt, int64, on the model's device.

        Returns:
            The prompts that did not end on the way, and the float32 logits [M, V] after each.

        Raises:
            AllEndedError: none is left.
        """
        if not self._prompts:
            raise AllEndedError
        rows = self._begin(ids)
        pace = Pace(rows.x_TE.shape[0], mark=mark_for(self._model.device))
        num_layers = len(self._model.layers)
        for index in range(num_layers):
            rows = self._layer(index, rows)
            pace.layer_enqueued(sum(prompt.tokens_onward for prompt in rows.prompts))
            rows = rows.some(lambda prompt: not prompt.ended)
            for prompt in rows.prompts:
                prompt.progress(index + 1, num_layers=num_layers)
        rows = rows.some(lambda prompt: not prompt.ended)
        return rows.prompts, self._model.logits(rows.x_TE)

    def _begin(self, ids: dict[PromptPass, Tensor]) -> _Rows:
        # The first: until there is something to compute, a device has nothing to do.
        x_TE = self._model.embed(joined([ids[prompt] for prompt in self._prompts]))
        tables = [self._model.prompt_rope(prompt.prompt_tokens) for prompt in self._prompts]
        return _Rows(
            prompts=self._prompts,
            lengths=[prompt.prompt_tokens for prompt in self._prompts],
            x_TE=x_TE,
            rope=RopeTable.joined(tables),
        )

    def _layer(self, index: int, rows: _Rows) -> _Rows:
        last = index == len(self._model.layers) - 1

        def way(prompt: PromptPass) -> _Way:
            if prompt.prunes_at(index):
                return _Way.PRUNING
            return _Way.LAST if last else _Way.WHOLE

        run = {_Way.PRUNING: self._pruning, _Way.LAST: self._last, _Way.WHOLE: self._whole}
        ways = rows.ways(way)
        if len(ways) == 1:
            return run[ways[0][0]](index, rows)
        after = [run[kind](index, part) for kind, part in ways]
        return _Rows.beside(after)

    def _whole(self, index: int, rows: _Rows) -> _Rows:
        shares = [
            Share(rows=span, window=prompt.selection.window(index), sink=prompt.sink(index))
            for prompt, span in zip(rows.prompts, rows.spans, strict=True)
        ]
        ran = self._steps.whole(self._model.layers[index], rows.x_TE, rows.rope, shares=shares)
        _settle(index, rows.prompts, ran)
        return rows

    def _pruning(self, index: int, rows: _Rows) -> _Rows:
        ran = self._without_attention(index, rows, least_window=0)
        kept: list[tuple[PromptPass, Tensor, KeptShare]] = []
        first, is_last = 0, index == len(self._model.layers) - 1
        for prompt, span, each in zip(rows.prompts, rows.spans, ran, strict=True):
            kept_N = _chosen(index, prompt, each)
            if kept_N is None:
                continue
            onward_N = kept_N[-1:] if is_last else kept_N
            own = slice(first, first + onward_N.shape[0])
            first = own.stop
            share = KeptShare(rows=own, positions_N=onward_N, kv=each.kv)
            kept.append((prompt, onward_N + span.start, share))
        if not kept:
            return _Rows(prompts=[], lengths=[], x_TE=rows.x_TE[:0], rope=rows.rope.rows(slice(0)))
        rows_N = joined([index_N for _, index_N, _ in kept])
        shares = [share for _, _, share in kept]
        layer, rope = self._model.layers[index], rows.rope.rows(rows_N)
        return _Rows(
            prompts=[prompt for prompt, _, _ in kept],
            lengths=[share.positions_N.shape[0] for share in shares],
            x_TE=self._steps.chosen(layer, rows.x_TE[rows_N], rope, kept=shares),
            rope=rope,
        )

    def _last(self, index: int, rows: _Rows) -> _Rows:
        ran = self._without_attention(index, rows, least_window=1)
        _settle(index, rows.prompts, ran)
        attn_MHD = joined(
            [
                self._steps.attention.causal(each.q_WHD[-1:], each.kv.k_TGD, each.kv.v_TGD)
                for each in ran
            ]
        )
        last_rows = [slice(span.stop - 1, span.stop) for span in rows.spans]
        x_ME = joined([rows.x_TE[row] for row in last_rows])
        return _Rows(
            prompts=rows.prompts,
            lengths=[1] * len(rows.prompts),
            x_TE=self._model.layers[index].finish(x_ME, attn_MHD),
            rope=RopeTable.joined([rows.rope.rows(row) for row in last_rows]),
        )

    def _without_attention(self, index: int, rows: _Rows, *, least_window: int) -> list[LayerRun]:
        """Keys and values of a layer for every row, and queries of each prompt's last rows."""
        layer, spans = self._model.layers[index], rows.spans
        shares = [
            Share(rows=span, sink=prompt.sink(index))
            for prompt, span in zip(rows.prompts, spans, strict=True)
        ]
        kv = self._steps.keys_and_values(layer, rows.x_TE, rows.rope, shares=shares)
        windows = [max(least_window, prompt.selection.window(index)) for prompt in rows.prompts]
        wanted = [slice(s.stop - w, s.stop) for s, w in zip(spans, windows, strict=True)]
        q_HD = layer.q(
            joined([rows.x_TE[rows_W] for rows_W in wanted]),
            RopeTable.joined([rows.rope.rows(rows_W) for rows_W in wanted]),
        )
        return [
            LayerRun(kv=each, q_WHD=q_WHD)
            for each, q_WHD in zip(kv, torch.split(q_HD, windows), strict=True)
        ]


def _settle(index: int, prompts: Sequence[PromptPass], ran: Sequence[LayerRun]) -> None:
    for prompt, each in zip(prompts, ran, strict=True):
        if not prompt.ended:
            with prompt.part():
                prompt.ran(index, each)


def _chosen(index: int, prompt: PromptPass, ran: LayerRun) -> Tensor | None:
    """Positions that go on past the pruning layer; None for a prompt that ended."""
    if not prompt.ended:
        with prompt.part():
            return prompt.choose(index, ran)
    return None
