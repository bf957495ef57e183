"""Where the KV slots that one layer reads lie in its pool.

Shapes: R rows of a selection, U its units, G KV heads, T slots read in a row, S slots of a pool.
"""

from dataclasses import dataclass

import torch

from decode_service.engine.kv_cache import GroupPages
from decode_service.sparsity.base import Selection
from shared.kv.geometry import PAGE_SIZE, pages_for


@dataclass(frozen=True, slots=True, kw_only=True)
class KvRead:
    """Slots that one layer reads, as places in its pool.

    Whole rows lie in one run or are pages of a table. A choice is pages or slots of all heads
    together; where heads choose apart, it is places of single heads.
    """

    slots: int
    """KV slots that each head reads, the fed token's included."""
    first_slot: int | None
    """Where they begin when they lie in one run; None: go through the table."""
    table: torch.Tensor
    """int64, in reading order. One row: physical pages (the last may be read in part) or physical
    slots. More rows: R * T places in the pool seen as S * G vectors."""
    unit: int
    """Slots of an entry of the table: 16 or 1."""
    rows: int = 1
    """R: how many sets of slots are read; 1: one for all heads."""
    selection: Selection | None = None
    """The logical choice; None when all is read."""


def whole_read(held: GroupPages, *, length: int) -> KvRead:
    """All `length` slots of a row in one group."""
    num_pages = pages_for(length) if held.pages else 0
    assert num_pages <= len(held.pages), "a row reserves all its pages before it runs"
    return KvRead(
        slots=length,
        first_slot=None if held.start is None else held.start * PAGE_SIZE,
        table=held.table[:num_pages],
        unit=PAGE_SIZE,
    )


def chosen_read(selection: Selection, held: GroupPages, *, num_kv_heads: int) -> KvRead:
    """The chosen slots of a row in one group."""
    units_RU, unit = selection.units_RU, selection.unit
    rows = units_RU.shape[0]
    if rows > 1:
        table = _places_of_heads(selection, held, num_kv_heads=num_kv_heads)
        unit = 1
    elif unit == PAGE_SIZE:
        table = held.table[units_RU[0]]
    else:
        assert selection.visible == units_RU.shape[1], "a slot is one unit"
        table = _physical_slots(units_RU[0], held)
    return KvRead(
        slots=selection.visible,
        first_slot=None,
        table=table,
        unit=unit,
        rows=rows,
        selection=selection,
    )


def logical_slots(selection: Selection) -> torch.Tensor:
    """Slots that each row of a selection reads, in reading order, [R, T]."""
    if selection.unit == 1:
        return selection.units_RU
    within_16 = torch.arange(PAGE_SIZE, device=selection.units_RU.device)
    slots_RU16 = selection.units_RU.unsqueeze(-1) * PAGE_SIZE + within_16
    return slots_RU16.flatten(1)[:, : selection.visible]


def _physical_slots(slots: torch.Tensor, held: GroupPages) -> torch.Tensor:
    if held.start is not None:
        return slots + held.start * PAGE_SIZE
    return held.table[slots // PAGE_SIZE] * PAGE_SIZE + slots % PAGE_SIZE


def _places_of_heads(selection: Selection, held: GroupPages, *, num_kv_heads: int) -> torch.Tensor:
    """Numbers of the head vectors to read, row after row; keys of slot s and head g are s*G + g."""
    rows = selection.units_RU.shape[0]
    assert rows % num_kv_heads == 0, "heads choose together, by KV head or by query head"
    heads_R = torch.arange(rows, device=selection.units_RU.device) // (rows // num_kv_heads)
    slots_RT = _physical_slots(logical_slots(selection), held)
    return (slots_RT * num_kv_heads + heads_R.unsqueeze(1)).flatten()
