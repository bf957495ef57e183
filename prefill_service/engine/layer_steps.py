"""The ways to run one decoder layer over prompts whose rows lie side by side, block by block.

Products, norms and rotations run over the rows of all prompts, attention over each prompt's own.
Blocks bound activations, not results: every way gives what one pass over each prompt alone gives.

Shapes: T rows of all prompts, W window rows of one, N rows that go on, E hidden width, H query
heads, G KV heads, D head size.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from shared.model.attention import PrefillAttention
from shared.model.config import ModelConfig
from shared.model.layers import DecoderLayer
from shared.model.rope import RopeTable

BlockSink = Callable[[int, Tensor, Tensor], None]
"""Called with a block's first token and its final keys and values [block, G, D]."""


def drop_block(_first_slot: int, _k_BGD: Tensor, _v_BGD: Tensor) -> None:
    """A block sink for layers whose KV leaves later or not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKv:
    """Keys and values of a layer for every token of a prompt; written once, block by block."""

    k_TGD: Tensor
    """Keys after RoPE."""
    v_TGD: Tensor
    """Values."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerRun:
    """What a layer leaves behind that ran on every token of a sequence."""

    kv: LayerKv
    """Keys and values."""
    q_WHD: Tensor
    """Queries of the last tokens."""
    lse_WH: Tensor | None = None
    """Natural log-sum-exp of their scaled logits, float32, where the attention tells it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Share:
    """What of a layer is one prompt's."""

    rows: slice
    """Its rows; the rows of the next prompt follow."""
    window: int = 0
    """Last rows whose queries are wanted."""
    sink: BlockSink = drop_block
    """Is given its keys and values; first tokens count from its own first row."""

    def of(self, kv: LayerKv) -> LayerKv:
        """Its part of the keys and values of all prompts."""
        return LayerKv(k_TGD=kv.k_TGD[self.rows], v_TGD=kv.v_TGD[self.rows])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeptShare:
    """The tokens of a prompt that have the rest of a layer run, whose keys are there already."""

    rows: slice
    """Their rows; those of the next prompt follow."""
    positions_N: Tensor
    """Their positions, ascending; each sees keys up to its own."""
    kv: LayerKv
    """Keys and values of the whole prompt; key s is at position s."""


class PromptSteps(Protocol):
    """The ways to run one decoder layer over prompts; `LayerSteps` says what each does."""

    @property
    def attention(self) -> PrefillAttention:
        """The backend."""

    def whole(
        self, layer: DecoderLayer, x_TE: Tensor, rope: RopeTable, *, shares: Sequence[Share]
    ) -> list[LayerRun]:
        """A layer on every token, `x_TE` in place."""

    def keys_and_values(
        self, layer: DecoderLayer, x_TE: Tensor, rope: RopeTable, *, shares: Sequence[Share]
    ) -> list[LayerKv]:
        """Only the keys and values of a layer, for every token."""

    def chosen(
        self, layer: DecoderLayer, x_NE: Tensor, rope: RopeTable, *, kept: Sequence[KeptShare]
    ) -> Tensor:
        """The rest of a layer for some tokens, [N, E]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSteps:
    """Runs layers through PyTorch: on a CPU, and as the reference of others."""

    attention: PrefillAttention
    """The backend."""
    config: ModelConfig
    """Of the model whose layers are run."""
    chunk_tokens: int
    """Tokens of a block."""
    check: Callable[[], None]
    """Called before every block; raises to stop all prompts."""

    def whole(
        self, layer: DecoderLayer, x_TE: Tensor, rope: RopeTable, *, shares: Sequence[Share]
    ) -> list[LayerRun]:
        """Runs a layer on every token, `x_TE` in place.

        Returns:
            Of each prompt, keys and values, and the queries of its last tokens [window, H, D].
        """
        kv = self._kv_room(x_TE)
        windows: list[list[Tensor]] = [[] for _ in shares]
        for rows in blocks(x_TE.shape[0], self.chunk_tokens, check=self.check):
            q_BHD, k_BGD, v_BGD = layer.qkv(x_TE[rows], rope.rows(rows))
            _store(kv, rows, k_BGD, v_BGD)
            attended = []
            for index, own in cuts([share.rows for share in shares], rows):
                share = shares[index]
                hand_over(share, own, (kv.k_TGD, kv.v_TGD))
                q_OHD = q_BHD[own.start - rows.start : own.stop - rows.start]
                first_wanted = share.rows.stop - share.window
                windows[index].append(q_OHD[max(0, first_wanted - own.start) :].clone())
                seen = slice(share.rows.start, own.stop)
                attended.append(self.attention.causal(q_OHD, kv.k_TGD[seen], kv.v_TGD[seen]))
            x_TE[rows] = layer.finish(x_TE[rows], joined(attended))
        return [
            LayerRun(kv=share.of(kv), q_WHD=torch.cat(window))
            for share, window in zip(shares, windows, strict=True)
        ]

    def keys_and_values(
        self, layer: DecoderLayer, x_TE: Tensor, rope: RopeTable, *, shares: Sequence[Share]
    ) -> list[LayerKv]:
        """Only the keys and values of a layer, for every token; one item a prompt."""
        kv = self._kv_room(x_TE)
        for rows in blocks(x_TE.shape[0], self.chunk_tokens, check=self.check):
            _store(kv, rows, *layer.kv(x_TE[rows], rope.rows(rows)))
            for index, own in cuts([share.rows for share in shares], rows):
                hand_over(shares[index], own, (kv.k_TGD, kv.v_TGD))
        return [share.of(kv) for share in shares]

    def chosen(
        self, layer: DecoderLayer, x_NE: Tensor, rope: RopeTable, *, kept: Sequence[KeptShare]
    ) -> Tensor:
        """Runs the rest of a layer for some tokens whose keys and values are there, [N, E].

        Args:
            layer: the layer.
            x_NE: its input at the chosen tokens.
            rope: the table of those tokens.
            kept: which tokens they are, by prompt.
        """
        out_NE = torch.empty_like(x_NE)
        for rows in blocks(x_NE.shape[0], self.chunk_tokens, check=self.check):
            q_BHD = layer.q(x_NE[rows], rope.rows(rows))
            attended = []
            for index, own in cuts([share.rows for share in kept], rows):
                share = kept[index]
                first = share.rows.start
                positions_O = share.positions_N[own.start - first : own.stop - first]
                num_keys = int(positions_O[-1]) + 1
                attended.append(
                    self.attention.at_positions(
                        q_BHD[own.start - rows.start : own.stop - rows.start],
                        share.kv.k_TGD[:num_keys],
                        share.kv.v_TGD[:num_keys],
                        positions_T=positions_O,
                    )
                )
            out_NE[rows] = layer.finish(x_NE[rows], joined(attended))
        return out_NE

    def _kv_room(self, x_TE: Tensor) -> LayerKv:
        """Room for the keys and values of every token, in the type and place of `x_TE`."""
        shape = (x_TE.shape[0], self.config.num_kv_heads, self.config.head_dim)
        return LayerKv(k_TGD=x_TE.new_empty(shape), v_TGD=x_TE.new_empty(shape))


def blocks(num_tokens: int, chunk_tokens: int, *, check: Callable[[], None]) -> Iterator[slice]:
    """Rows of one block after the other; `check` is called before each and may raise."""
    for start in range(0, num_tokens, chunk_tokens):
        check()
        yield slice(start, min(start + chunk_tokens, num_tokens))


def cuts(shares: Sequence[slice], rows: slice) -> Iterator[tuple[int, slice]]:
    """Which of a block's rows are whose: (index of a prompt, its rows in the block), in order."""
    for index, share in enumerate(shares):
        own = slice(max(share.start, rows.start), min(share.stop, rows.stop))
        if own.start < own.stop:
            yield index, own


def hand_over(share: Share, own: slice, kv_TGD: tuple[Tensor, Tensor]) -> None:
    """Gives some rows of a prompt's final keys and values, out of all prompts', to its sink."""
    keys, values = kv_TGD
    share.sink(own.start - share.rows.start, keys[own], values[own])


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Rows of the parts one after the other; one part alone is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _store(kv: LayerKv, rows: slice, k_BGD: Tensor, v_BGD: Tensor) -> None:
    kv.k_TGD[rows] = k_BGD
    kv.v_TGD[rows] = v_BGD
