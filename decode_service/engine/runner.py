"""One decode step for a ragged batch of rows; rows join and leave between any two steps.

The products of a layer run once for all rows, attention runs row by row over the slots that each
row reads. Nothing is kept between steps outside the rows and the page cache.

Shapes: B rows, E hidden width, H query heads, G KV heads, D head size, T slots read, V vocabulary.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from decode_service.engine.attention import DecodeAttention
from decode_service.engine.kv_cache import LengthGroup, PagedKvCache
from decode_service.engine.kv_read import KvRead
from decode_service.engine.kv_reader import KvReader, LayerKeys
from decode_service.engine.row_step import RowStep
from decode_service.engine.sequence import Sequence
from decode_service.sparsity.base import Evidence, LayerKv
from shared.model.rope import RopeTable
from shared.model.rope_config import RopeKind
from shared.model.sampler import DrawRow, sample_rows
from shared.model.transformer import Transformer
from shared.types.sampling import SampledToken


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRead:
    """What one row read in one layer."""

    row: Sequence
    """The row, before the step."""
    layer: int
    """Decoder layer."""
    read: KvRead
    """Slots read."""
    q_HD: torch.Tensor
    """The layer's rotated query."""
    kv: LayerKv
    """All keys of the row in this layer; valid within the call."""
    planned: bool
    """Whether the policy was told what the layer saw."""


class StepObserver(Protocol):
    """Sees what a step reads."""

    def layer_read(self, seen: LayerRead) -> None:
        """Called for every layer of every row, in order, within the step."""


class RowObserver(StepObserver, Protocol):
    """Looks at some rows only, so that the others may take a path that shows nothing."""

    def watches(self, row: Sequence) -> bool:
        """Whether it wants to see what a row reads."""


class ObservedRunner(Protocol):
    """Advances rows by one token and lets somebody watch."""

    def step(
        self, rows: list[Sequence], *, observer: RowObserver | None = None
    ) -> list[SampledToken]:
        """See `DecodeRunner.step`."""


class ServingRunner(ObservedRunner, Protocol):
    """What a worker serves with."""

    def prepare(self, row: Sequence) -> None:
        """Steps a row, and does all that the first steps of rows like it would have to do."""

    @property
    def facts(self) -> dict[str, object]:
        """What the health page says of how it computes, JSON-ready."""


@dataclass(frozen=True, slots=True)
class Computed:
    """A step whose rows have not moved yet: dropped, it leaves no trace."""

    logits_BV: torch.Tensor
    """Float32."""
    steps: list[RowStep]
    """One a row."""

    @property
    def attended(self) -> list[int]:
        """KV slots that each row read, summed over layers."""
        return [step.attended for step in self.steps]

    @torch.inference_mode()
    def accept(self, token_ids: list[int]) -> None:
        """Every row takes its token and moves on; once."""
        for step, token_id in zip(self.steps, token_ids, strict=True):
            step.commit(token_id)


class DecodeRunner:
    """Feeds each row's last token and draws its next one.

    Args:
        model: the decoder.
        cache: where the rows' pages are; its split fits the model.
        attention: backend of one row's attention.
    """

    def __init__(
        self, model: Transformer, cache: PagedKvCache, *, attention: DecodeAttention
    ) -> None:
        self._model = model
        self._cache = cache
        self._attention = attention
        self._reader = KvReader(cache)
        self._keys = LayerKeys(self._reader)
        self._groups = [cache.group_of(layer) for layer in range(model.config.num_layers)]

    def step(
        self, rows: list[Sequence], *, observer: StepObserver | None = None
    ) -> list[SampledToken]:
        """One token a row: feeds each row's last token, draws the next one and appends it.

        Rows change only when all of them succeeded; a step that raised may be repeated.

        Raises:
            InternalError: a row's logits are not numbers, or every token of it is ruled out.
            InvalidRequestError: a row's grammar became too complex to follow.
        """
        computed = self.forward(rows, observer=observer)
        tokens = self.sample(computed, rows)
        computed.accept([token.token_id for token in tokens])
        return tokens

    def prepare(self, row: Sequence) -> None:
        """See `ServingRunner.prepare`: a step is all."""
        self.step([row])

    @property
    def facts(self) -> dict[str, object]:
        """None."""
        return {}

    def sample(self, computed: Computed, rows: list[Sequence]) -> list[SampledToken]:
        """Draws the next token of every row; none of them moves on.

        Raises:
            InternalError: a row's logits are not numbers, or every token of it is ruled out.
            InvalidRequestError: a row's grammar became too complex to follow.
        """
        return sample_rows(computed.logits_BV, draws_of(rows, self._model.config.vocab_size))

    @torch.inference_mode()
    def forward(self, rows: list[Sequence], *, observer: StepObserver | None = None) -> Computed:
        """Writes the KV of each row's last token and leaves the rows' own state alone.

        Doing it again gives the same, so a failed step may be repeated.
        """
        assert rows, "a step needs a row"
        steps = [RowStep(row, self._cache) for row in rows]
        device = self._model.device
        ids_B = torch.tensor([row.generated[-1] for row in rows], device=device)
        rope = self._rope([row.position for row in rows])
        write_slots = self._write_slots(steps)
        x_BE = self._model.embed(ids_B)
        for index, layer in enumerate(self._model.layers):
            q_BHD, k_BGD, v_BGD = layer.qkv(x_BE, rope)
            keys, values = self._cache.pool_of(index).flat(index)
            keys.index_copy_(0, write_slots[self._groups[index]], k_BGD)
            values.index_copy_(0, write_slots[self._groups[index]], v_BGD)
            x_BE = layer.finish(x_BE, self._attend(index, steps, q_BHD, observer))
        return Computed(self._model.logits(x_BE), steps)

    def _attend(
        self,
        layer: int,
        steps: list[RowStep],
        q_BHD: torch.Tensor,
        observer: StepObserver | None,
    ) -> torch.Tensor:
        """Attention of every row in one layer, [B, H, D]."""
        outputs = []
        for index, step in enumerate(steps):
            q_HD, kv = q_BHD[index], self._keys.at(layer, step.whole(layer))
            read = step.select(layer, q_HD, kv)
            wanted = step.evidence(layer)
            k_TGD, v_TGD = self._reader.view(layer, read)
            out_HD, evidence = self._attention.attend(q_HD, k_TGD, v_TGD, evidence=wanted)
            if evidence is not None:
                step.observe(layer, evidence)
            if observer is not None:
                planned = wanted is not Evidence.NONE
                observer.layer_read(
                    LayerRead(
                        row=step.row, layer=layer, read=read, q_HD=q_HD, kv=kv, planned=planned
                    )
                )
            outputs.append(out_HD)
        return outputs[0].unsqueeze(0) if len(outputs) == 1 else torch.stack(outputs)

    def _write_slots(self, steps: list[RowStep]) -> dict[LengthGroup, torch.Tensor]:
        return {
            group: torch.tensor(
                [step.write_slot(group) for step in steps], device=self._model.device
            )
            for group in set(self._groups)
        }

    def _rope(self, positions: list[int]) -> RopeTable:
        """Rotations at the rows' original positions; the dynamic kind stretches row by row."""
        positions_B = torch.tensor(positions, device=self._model.device)
        if self._model.config.rope.kind is not RopeKind.DYNAMIC:
            return self._model.rope(positions_B, context_tokens=max(positions) + 1)
        tables = [
            self._model.rope(positions_B[i : i + 1], context_tokens=position + 1)
            for i, position in enumerate(positions)
        ]
        return RopeTable(
            torch.cat([table.cos_TD for table in tables]),
            torch.cat([table.sin_TD for table in tables]),
        )


def draws_of(rows: list[Sequence], vocab_size: int) -> list[DrawRow]:
    """What the next draw of each row depends on."""
    return [_draw_row(row, vocab_size=vocab_size) for row in rows]


def _draw_row(row: Sequence, *, vocab_size: int) -> DrawRow:
    return DrawRow(
        params=row.sampling,
        branch=row.branch,
        draw=row.draws,
        prompt_ids=row.prompt_ids,
        generated_ids=row.generated,
        banned_ids=row.banned_ids(),
        allowed_V=None if row.matcher is None else row.matcher.allowed(vocab_size),
    )
