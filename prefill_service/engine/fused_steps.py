"""The ways to run one decoder layer over prompts on a CUDA device, with kernels of ours.

Products go block by block, which bounds the wide activations; attention goes over whole prompts at
once, as exact kernels want it. Nothing here waits for the device. The stream of activations is
written in place: both products that end in it add to it.

Shapes: T rows of all prompts, P the same with padding, W window rows, N rows that go on, B rows
of a block, E hidden width, H query heads, G KV heads, D head size.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch.nn.functional as F  # noqa: N812 - the name torch users know
from torch import Tensor

from prefill_service.engine.layer_steps import (
    KeptShare,
    LayerKv,
    LayerRun,
    Share,
    blocks,
    cuts,
    hand_over,
    joined,
)
from prefill_service.kernels.gated_product import gated_product
from prefill_service.kernels.kept_queries import kept_queries_attention
from prefill_service.kernels.rotate_heads import HeadNorms, HeadTargets, rotate_heads
from prefill_service.kernels.row_norm import row_norm
from shared.model.config import ModelConfig
from shared.model.device_attention import DeviceAttention
from shared.model.layers import DecoderLayer
from shared.model.rope import RopeTable


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedLayerSteps:
    """Runs layers; `LayerSteps` is its slow twin and says what each way gives."""

    attention: DeviceAttention
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
        """Runs a layer on every token, `x_TE` in place; see `PromptSteps.whole`."""
        tokens, config = x_TE.shape[0], self.config
        lengths = tuple(share.rows.stop - share.rows.start for share in shares)
        for rows in self._blocks(tokens):
            product_BX = self._product(layer, x_TE[rows], rows=slice(None))
            if rows.start == 0:
                # Not before the first product, for which a device waits that has nothing to do.
                room = self.attention.padded(*lengths)
                q_PHD = x_TE.new_empty((room, config.num_heads, config.head_dim))
                kv_PGD = self._kv_room(x_TE, tokens=tokens, room=room)
            targets = HeadTargets(q_THD=q_PHD[rows], kv_TGD=(kv_PGD[0][rows], kv_PGD[1][rows]))
            self._rotate(layer, product_BX, rope.rows(rows), to=targets)
            _hand_over(shares, rows, kv_PGD)
        want_lse = any(share.window for share in shares)
        seen = self.attention.prompts(q_PHD, *kv_PGD, lengths=lengths, want_lse=want_lse)
        windows = [slice(share.rows.stop - share.window, share.rows.stop) for share in shares]
        queries = [q_PHD[window].clone() for window in windows]
        del q_PHD  # the widest tensor here, and only these few queries are looked at again
        for rows in self._blocks(tokens):
            self._finish(layer, x_TE[rows], seen.out_THD[rows])
        kv = LayerKv(k_TGD=kv_PGD[0], v_TGD=kv_PGD[1])
        lse_TH = seen.lse_TH
        return [
            LayerRun(
                kv=share.of(kv),
                q_WHD=q_WHD,
                lse_WH=None if lse_TH is None else lse_TH[window].clone(),
            )
            for share, window, q_WHD in zip(shares, windows, queries, strict=True)
        ]

    def keys_and_values(
        self, layer: DecoderLayer, x_TE: Tensor, rope: RopeTable, *, shares: Sequence[Share]
    ) -> list[LayerKv]:
        """Only the keys and values of a layer; see `PromptSteps.keys_and_values`."""
        k_TGD, v_TGD = self._kv_room(x_TE, tokens=x_TE.shape[0], room=x_TE.shape[0])
        kv_rows = slice(self.config.num_heads * self.config.head_dim, None)
        for rows in self._blocks(x_TE.shape[0]):
            product_BX = self._product(layer, x_TE[rows], rows=kv_rows)
            targets = HeadTargets(kv_TGD=(k_TGD[rows], v_TGD[rows]))
            self._rotate(layer, product_BX, rope.rows(rows), to=targets)
            _hand_over(shares, rows, (k_TGD, v_TGD))
        return [share.of(LayerKv(k_TGD=k_TGD, v_TGD=v_TGD)) for share in shares]

    def chosen(
        self, layer: DecoderLayer, x_NE: Tensor, rope: RopeTable, *, kept: Sequence[KeptShare]
    ) -> Tensor:
        """The rest of a layer for some tokens, `x_NE` in place; see `PromptSteps.chosen`."""
        config = self.config
        q_rows = slice(config.num_heads * config.head_dim)
        for rows in self._blocks(x_NE.shape[0]):
            x_BE = x_NE[rows]
            product_BX = self._product(layer, x_BE, rows=q_rows)
            q_BHD = x_NE.new_empty((x_BE.shape[0], config.num_heads, config.head_dim))
            self._rotate(layer, product_BX, rope.rows(rows), to=HeadTargets(q_THD=q_BHD))
            self._finish(layer, x_BE, _attend_kept(q_BHD, kept, rows))
        return x_NE

    def _product(self, layer: DecoderLayer, x_BE: Tensor, *, rows: slice) -> Tensor:
        """Some rows of the fused product, bias included, [B, X], before norms and rotation."""
        w = layer.weights
        normed_BE = row_norm(x_BE, w.input_norm_E, eps=self.config.rms_norm_eps)
        bias_X = None if w.qkv_bias is None else w.qkv_bias[rows]
        return F.linear(normed_BE, w.qkv[rows], bias_X)

    def _rotate(
        self, layer: DecoderLayer, product_BX: Tensor, rope: RopeTable, *, to: HeadTargets
    ) -> None:
        w, norms = layer.weights, None
        if w.q_norm_D is not None and w.k_norm_D is not None:
            norms = HeadNorms(q_D=w.q_norm_D, k_D=w.k_norm_D, eps=self.config.rms_norm_eps)
        rotate_heads(product_BX, (rope.cos_TD, rope.sin_TD), to=to, norms=norms)

    def _finish(self, layer: DecoderLayer, x_BE: Tensor, attn_BHD: Tensor) -> None:
        """Adds attention output and MLP to `x_BE`."""
        w = layer.weights
        x_BE.addmm_(attn_BHD.reshape(x_BE.shape[0], -1), w.out.t())
        normed_BE = row_norm(x_BE, w.post_norm_E, eps=self.config.rms_norm_eps)
        x_BE.addmm_(gated_product(F.linear(normed_BE, w.gate_up)), w.down.t())

    def _kv_room(self, x_TE: Tensor, *, tokens: int, room: int) -> tuple[Tensor, Tensor]:
        """Room for keys and values of all rows; after those, numbers, which exact kernels read.

        Queries need none there: what comes of rows after the prompt is never looked at.
        """
        kv_2PGD = x_TE.new_empty((2, room, self.config.num_kv_heads, self.config.head_dim))
        if room > tokens:
            kv_2PGD[:, tokens:].zero_()
        k_PGD, v_PGD = kv_2PGD.unbind()
        return k_PGD, v_PGD

    def _blocks(self, tokens: int) -> Iterator[slice]:
        return blocks(tokens, self.chunk_tokens, check=self.check)


def _hand_over(shares: Sequence[Share], rows: slice, kv_TGD: tuple[Tensor, Tensor]) -> None:
    for index, own in cuts([share.rows for share in shares], rows):
        hand_over(shares[index], own, kv_TGD)


def _attend_kept(q_BHD: Tensor, kept: Sequence[KeptShare], rows: slice) -> Tensor:
    """Attention [B, H, D] of a block's queries, each over the keys of its own prompt."""
    attended = []
    for index, own in cuts([share.rows for share in kept], rows):
        share = kept[index]
        first = share.rows.start
        attended.append(
            kept_queries_attention(
                q_BHD[own.start - rows.start : own.stop - rows.start],
                (share.kv.k_TGD, share.kv.v_TGD),
                share.positions_N[own.start - first : own.stop - first],
            )
        )
    return joined(attended)
