"""Tokens after a batch of prompts: dense attention over each prompt's own KV, whatever its shape.

A layer's prompts are aligned at their ends in one buffer, so that every row's next token takes the
same slot; a mask hides what lies before a shorter prompt. Rows whose first tokens are fewer than
the others' begin with dead slots, which no other slot sees.

Shapes: B rows, T tokens fed together, J tail slots, P prompt slots of a layer's buffer, S = P plus
the tail slots in use, N prompt slots of one row and layer, H query heads, G KV heads, R = H / G, D
head size, E hidden width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the name torch users know
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from prefill_service.engine.evaluate import EvaluatedPrompt
from shared.model.rope import RopeTable
from shared.model.rope_config import RopeKind
from shared.model.transformer import Transformer

_BACKENDS = (
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
)
"""Without cuDNN, which plans anew for every length, and a tail's changes with every token."""

QuerySink = Callable[[int, Tensor], None]
"""Is told a layer's index and its rotated queries [B, T, H, D]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TailLayer:
    """What one layer did with a block of tail tokens. The keys live until the next block."""

    first: int
    """Tail slot of the block's first token."""
    queries_BTHD: Tensor
    """Rotated queries."""
    keys_BGSD: Tensor
    """Rotated keys of all prompt slots and of the tail up to this block's end."""
    input_BTE: Tensor
    """Residual stream before the layer."""
    output_BTE: Tensor
    """The same after it."""


LayerSink = Callable[[int, TailLayer], None]
"""Is told a layer's index and what it did."""

_BLOCK = 64
"""Tokens fed together at most; bounds masks at B x R x 64 x S values."""
_MASK_ALIGNMENT = 16
"""Masks whose rows begin at multiples of this are taken by the fused kernels without a copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptKv:
    """What a tail attends to."""

    layers: Sequence[tuple[Tensor, Tensor]]
    """Rotated keys and values [N, G, D] of each layer."""
    next_position: int
    """Position of the first token of the tail."""
    context_tokens: int
    """Length that the prompt was rotated for; the dynamic kind of RoPE stretches from there."""

    @classmethod
    def of(cls, prompt: EvaluatedPrompt) -> "PromptKv":
        """The KV of a prefill, pruned or not."""
        return cls(
            layers=[(kv.keys_NGD, kv.values_NGD) for kv in prompt.layer_kv],
            next_position=prompt.next_position,
            context_tokens=prompt.next_position,
        )

    def without_last(self, tokens: int) -> "PromptKv":
        """The same prompt before its last `tokens` tokens; every layer must hold all of it."""
        kept = self.next_position - tokens
        assert kept >= 0
        assert all(k_NGD.shape[0] == self.next_position for k_NGD, _ in self.layers)
        return PromptKv(
            layers=[(k_NGD[:kept], v_NGD[:kept]) for k_NGD, v_NGD in self.layers],
            next_position=kept,
            context_tokens=self.context_tokens,
        )


class TailRun:
    """Feeds tokens to rows that each hold a prompt.

    Args:
        model: the decoder.
        prompts: one a row; copied.
        room: tail slots of every row.
        dead_slots: leading tail slots of each row that hold no token; none without it.
    """

    def __init__(
        self,
        model: Transformer,
        prompts: Sequence[PromptKv],
        *,
        room: int,
        dead_slots: Sequence[int] | None = None,
    ) -> None:
        dead = [0] * len(prompts) if dead_slots is None else list(dead_slots)
        self._model = model
        self._dead_B = torch.tensor(dead, device=model.device)
        self._has_dead = any(dead)
        self._used = 0
        self._layers = [
            _LayerBuffer([prompt.layers[index] for prompt in prompts], room=room)
            for index in range(model.config.num_layers)
        ]
        tables = [
            _rope(model, prompt, first=prompt.next_position - skipped, count=room)
            for prompt, skipped in zip(prompts, dead, strict=True)
        ]
        self._cos_BJD = torch.stack([table.cos_TD for table in tables])
        self._sin_BJD = torch.stack([table.sin_TD for table in tables])

    def feed(
        self,
        ids_BT: Tensor,
        *,
        on_queries: QuerySink | None = None,
        on_layer: LayerSink | None = None,
    ) -> Tensor:
        """Appends tokens to every row.

        Args:
            ids_BT: int64 on the model's device; what stands in dead slots does not matter.
            on_queries: called in each layer of each block of tokens, in order.
            on_layer: called after each layer of each block of tokens, in order.

        Returns:
            The last layer's output [B, T, E].
        """
        with sdpa_kernel(list(_BACKENDS)):
            blocks = [
                self._feed_block(ids, on_queries=on_queries, on_layer=on_layer)
                for ids in torch.split(ids_BT, _BLOCK, dim=1)
            ]
        return torch.cat(blocks, dim=1)

    def _feed_block(
        self, ids_BT: Tensor, *, on_queries: QuerySink | None, on_layer: LayerSink | None
    ) -> Tensor:
        num_rows, num_tokens = ids_BT.shape
        slots = slice(self._used, self._used + num_tokens)
        rope = RopeTable(
            self._cos_BJD[:, slots].flatten(0, 1), self._sin_BJD[:, slots].flatten(0, 1)
        )
        biases: dict[tuple[int, ...], Tensor | None] = {}
        x_TE = self._model.embed(ids_BT.flatten())
        for index, layer in enumerate(self._model.layers):
            q_THD, k_TGD, v_TGD = layer.qkv(x_TE, rope)
            q_BTHD = q_THD.reshape(num_rows, num_tokens, *q_THD.shape[1:])
            if on_queries is not None:
                on_queries(index, q_BTHD)
            buffer = self._layers[index]
            buffer.write(slots, k_TGD, v_TGD)
            if buffer.lengths not in biases:
                biases[buffer.lengths] = self._bias(buffer, slots)
            attn_BTHD = buffer.attend(q_BTHD, used=slots.stop, bias=biases[buffer.lengths])
            before_TE, x_TE = x_TE, layer.finish(x_TE, attn_BTHD.flatten(0, 1))
            if on_layer is not None:
                done = TailLayer(
                    first=slots.start,
                    queries_BTHD=q_BTHD,
                    keys_BGSD=buffer.keys(used=slots.stop),
                    input_BTE=before_TE.view(num_rows, num_tokens, -1),
                    output_BTE=x_TE.view(num_rows, num_tokens, -1),
                )
                on_layer(index, done)
        self._used = slots.stop
        return x_TE.view(num_rows, num_tokens, -1)

    def _bias(self, buffer: "_LayerBuffer", slots: slice) -> Tensor | None:
        """Zero where a token sees a slot, minus infinity elsewhere, [B, 1, R T, S]."""
        num_tokens = slots.stop - slots.start
        if num_tokens == 1 and not self._has_dead and len(set(buffer.lengths)) == 1:
            return None
        device = self._model.device
        lengths_B1 = torch.tensor(buffer.lengths, device=device)[:, None]
        prompt_BP = torch.arange(buffer.width, device=device) >= buffer.width - lengths_B1
        key_J = torch.arange(slots.stop, device=device)
        query_T1 = torch.arange(slots.start, slots.stop, device=device)[:, None]
        # A dead slot sees itself, or an empty prompt would leave it nothing and make it NaN.
        alive_BTJ = (key_J >= self._dead_B[:, None, None]) & (key_J <= query_T1)
        tail_BTJ = alive_BTJ | (key_J == query_T1)
        seen_BTS = torch.cat((prompt_BP[:, None].expand(-1, num_tokens, -1), tail_BTJ), dim=-1)
        share = self._model.config.num_heads // self._model.config.num_kv_heads
        bias = _aligned_zeros(
            (len(buffer.lengths), share, num_tokens, seen_BTS.shape[-1]),
            dtype=self._model.dtype,
            device=device,
        )
        return bias.masked_fill_(~seen_BTS[:, None], float("-inf")).flatten(1, 2)[:, None]


class _LayerBuffer:
    """Keys and values of one layer for all rows, [B, G, P + J, D]."""

    def __init__(self, prompts: Sequence[tuple[Tensor, Tensor]], *, room: int) -> None:
        self.lengths = tuple(k_NGD.shape[0] for k_NGD, _ in prompts)
        """Prompt slots of each row."""
        self.width = max(self.lengths)
        """P: slots before the tail."""
        like = prompts[0][0]
        shape = (len(prompts), like.shape[1], self.width + room, like.shape[2])
        # Zeros, not whatever was there: a hidden NaN would still poison the weighted sum.
        self._k_BGSD, self._v_BGSD = like.new_zeros(shape), like.new_zeros(shape)
        for row, (k_NGD, v_NGD) in enumerate(prompts):
            own = slice(self.width - k_NGD.shape[0], self.width)
            self._k_BGSD[row, :, own] = k_NGD.transpose(0, 1)
            self._v_BGSD[row, :, own] = v_NGD.transpose(0, 1)

    def write(self, slots: slice, k_TGD: Tensor, v_TGD: Tensor) -> None:
        """Fills tail slots of every row from the rows' tokens, one after another."""
        own = slice(self.width + slots.start, self.width + slots.stop)
        shape = (len(self.lengths), slots.stop - slots.start, *k_TGD.shape[1:])
        self._k_BGSD[:, :, own] = k_TGD.reshape(shape).transpose(1, 2)
        self._v_BGSD[:, :, own] = v_TGD.reshape(shape).transpose(1, 2)

    def keys(self, *, used: int) -> Tensor:
        """Keys of the prompts and of `used` tail slots, [B, G, P + used, D]."""
        return self._k_BGSD[:, :, : self.width + used]

    def attend(self, q_BTHD: Tensor, *, used: int, bias: Tensor | None) -> Tensor:
        """Attention of the tail's last tokens over prompt and tail, [B, T, H, D].

        The query heads of a KV head become rows of one product, so keys are read once.
        """
        num_rows, num_tokens, num_heads, head_dim = q_BTHD.shape
        num_groups = self._k_BGSD.shape[1]
        share = num_heads // num_groups
        q_BGRTD = q_BTHD.view(num_rows, num_tokens, num_groups, share, head_dim).permute(
            0, 2, 3, 1, 4
        )
        seen = self.width + used
        out = F.scaled_dot_product_attention(
            q_BGRTD.flatten(2, 3), self._k_BGSD[:, :, :seen], self._v_BGSD[:, :, :seen], bias
        )
        out_BGRTD = out.view(num_rows, num_groups, share, num_tokens, head_dim)
        return out_BGRTD.permute(0, 3, 1, 2, 4).flatten(2, 3)


def _aligned_zeros(shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros whose rows begin at multiples of `_MASK_ALIGNMENT` values."""
    width = -(-shape[-1] // _MASK_ALIGNMENT) * _MASK_ALIGNMENT
    return torch.zeros((*shape[:-1], width), dtype=dtype, device=device)[..., : shape[-1]]


def _rope(model: Transformer, prompt: PromptKv, *, first: int, count: int) -> RopeTable:
    """Rotations of positions first.., with those before 0 (dead slots) taken as 0."""
    positions = [max(0, first + offset) for offset in range(count)]
    positions_T = torch.tensor(positions, device=model.device)
    if model.config.rope.kind is not RopeKind.DYNAMIC:
        return model.rope(positions_T, context_tokens=prompt.context_tokens)
    tables = [
        model.rope(positions_T[i : i + 1], context_tokens=max(prompt.context_tokens, position + 1))
        for i, position in enumerate(positions)
    ]
    return RopeTable(
        torch.cat([table.cos_TD for table in tables]),
        torch.cat([table.sin_TD for table in tables]),
    )
