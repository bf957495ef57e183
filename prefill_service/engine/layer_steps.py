"""The ways to run one decoder layer over a prompt, block by block.

Blocks bound activations, not results: every way gives what one pass over all tokens gives.

Shapes: T tokens of the sequence, W window rows, N rows that go on, E hidden width, H query heads, G
KV heads, D head size.
"""

from collections.abc import Callable, Iterator
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKv:
    """Keys and values of a layer for every token of the sequence; written once, block by block."""

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


class PromptSteps(Protocol):
    """The ways to run one decoder layer over a prompt; `LayerSteps` says what each does."""

    @property
    def attention(self) -> PrefillAttention:
        """The backend."""

    def whole(
        self, layer: DecoderLayer, x_TE: Tensor, rope: RopeTable, *, window: int, sink: BlockSink
    ) -> LayerRun:
        """A layer on every token, `x_TE` in place."""

    def keys_and_values(
        self, layer: DecoderLayer, x_TE: Tensor, rope: RopeTable, *, sink: BlockSink
    ) -> LayerKv:
        """Only the keys and values of a layer, for every token."""

    def chosen(
        self,
        layer: DecoderLayer,
        x_NE: Tensor,
        rope: RopeTable,
        kv: LayerKv,
        *,
        positions_N: Tensor,
    ) -> Tensor:
        """The rest of a layer for some tokens, [N, E]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSteps:
    """Runs layers for one prompt through PyTorch: on a CPU, and as the reference of others."""

    attention: PrefillAttention
    """The backend."""
    config: ModelConfig
    """Of the model whose layers are run."""
    chunk_tokens: int
    """Tokens of a block."""
    check: Callable[[], None]
    """Called before every block; raises to stop the prompt."""

    def whole(
        self,
        layer: DecoderLayer,
        x_TE: Tensor,
        rope: RopeTable,
        *,
        window: int,
        sink: BlockSink,
    ) -> LayerRun:
        """Runs a layer on every token, `x_TE` in place.

        Returns:
            Its keys and values, and the queries of the last `window` tokens [window, H, D].
        """
        num_tokens = x_TE.shape[0]
        kv = self._kv_room(x_TE)
        windows: list[Tensor] = []
        for rows in blocks(num_tokens, self.chunk_tokens, check=self.check):
            q_BHD, k_BGD, v_BGD = layer.qkv(x_TE[rows], rope.rows(rows))
            _store(kv, rows, k_BGD, v_BGD, sink=sink)
            windows.append(q_BHD[max(0, num_tokens - window - rows.start) :].clone())
            attn_BHD = self.attention.causal(q_BHD, kv.k_TGD[: rows.stop], kv.v_TGD[: rows.stop])
            x_TE[rows] = layer.finish(x_TE[rows], attn_BHD)
        return LayerRun(kv=kv, q_WHD=torch.cat(windows))

    def keys_and_values(
        self, layer: DecoderLayer, x_TE: Tensor, rope: RopeTable, *, sink: BlockSink
    ) -> LayerKv:
        """Only the keys and values of a layer, for every token."""
        kv = self._kv_room(x_TE)
        for rows in blocks(x_TE.shape[0], self.chunk_tokens, check=self.check):
            k_BGD, v_BGD = layer.kv(x_TE[rows], rope.rows(rows))
            _store(kv, rows, k_BGD, v_BGD, sink=sink)
        return kv

    def chosen(
        self,
        layer: DecoderLayer,
        x_NE: Tensor,
        rope: RopeTable,
        kv: LayerKv,
        *,
        positions_N: Tensor,
    ) -> Tensor:
        """Runs the rest of a layer for some tokens whose keys and values are in `kv`, [N, E].

        Args:
            layer: the layer.
            x_NE: its input at the chosen tokens.
            rope: the table of those tokens.
            kv: keys and values of the whole prompt; key s is at position s.
            positions_N: positions of the chosen tokens, ascending; each sees keys up to its own.
        """
        out_NE = torch.empty_like(x_NE)
        for rows in blocks(x_NE.shape[0], self.chunk_tokens, check=self.check):
            num_keys = int(positions_N[rows.stop - 1]) + 1
            attn_BHD = self.attention.at_positions(
                layer.q(x_NE[rows], rope.rows(rows)),
                kv.k_TGD[:num_keys],
                kv.v_TGD[:num_keys],
                positions_T=positions_N[rows],
            )
            out_NE[rows] = layer.finish(x_NE[rows], attn_BHD)
        return out_NE

    def _kv_room(self, x_TE: Tensor) -> LayerKv:
        """Room for the keys and values of every token, in the type and place of `x_TE`."""
        shape = (x_TE.shape[0], self.config.num_kv_heads, self.config.head_dim)
        return LayerKv(k_TGD=x_TE.new_empty(shape), v_TGD=x_TE.new_empty(shape))


def drop_block(_first_slot: int, _k_BGD: Tensor, _v_BGD: Tensor) -> None:
    """A block sink for layers whose KV leaves later or not at all."""


def blocks(num_tokens: int, chunk_tokens: int, *, check: Callable[[], None]) -> Iterator[slice]:
    """Rows of one block after the other; `check` is called before each and may raise."""
    for start in range(0, num_tokens, chunk_tokens):
        check()
        yield slice(start, min(start + chunk_tokens, num_tokens))


def _store(kv: LayerKv, rows: slice, k_BGD: Tensor, v_BGD: Tensor, *, sink: BlockSink) -> None:
    kv.k_TGD[rows] = k_BGD
    kv.v_TGD[rows] = v_BGD
    sink(rows.start, kv.k_TGD[rows], kv.v_TGD[rows])
