"""What a step reads of its rows, as tensors on the device that stay where they are.

The host writes twins in pinned memory and copies them over in the stream of the step, so nothing is
allocated and nothing waits. Tables and maps of a row are copied when it takes a seat (a map within
the device); a step copies a few numbers a row. An empty seat has no tokens and writes nothing.

Shapes: F fields, B seats of a step's shape, S rows of this step, M table width, X positions.
"""

import operator
from collections.abc import Sequence as Ordered

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decode_service.engine.batched.layer_tasks import BatchLayers
from decode_service.engine.batched.row_plan import RowPlan
from decode_service.engine.kv_cache import LengthGroup
from decode_service.engine.sequence import PromptKv, Sequence
from decode_service.kernels.page_scores import PositionMaps
from decode_service.kernels.paged_attention import PageTables
from decode_service.kernels.select_pages import Budgets
from shared.kv.geometry import PAGE_SIZE, pages_for

Numbers = npt.NDArray[np.int64]

_FIELDS = (
    "ids",
    "positions",
    "write_front",
    "write_rest",
    "length_front",
    "length_rest",
    "budget",
    "recency",
    "prompt",
    "slots_front",
    "slots_rest",
)
_OF = {name: number for number, name in enumerate(_FIELDS)}
_SUFFIX = {LengthGroup.FRONT: "front", LengthGroup.REST: "rest"}

# A step asks every row; these ask at the speed of C.
_prompt_of = operator.attrgetter("prompt")
_steps_of = operator.attrgetter("steps")
_generated_of = operator.attrgetter("generated")
_last_of = operator.itemgetter(-1)


_STAGES = 4
"""Pinned copies that take turns: a step is enqueued while the one before may still run, and its
numbers must not be written over before they were copied."""


class _Twin:
    """A tensor on the device and its twin on the host, for what changes at every step."""

    def __init__(self, shape: tuple[int, ...], *, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.device = torch.zeros(shape, dtype=torch.int32, device=device)
        self.host: npt.NDArray[np.int32] = np.zeros(shape, dtype=np.int32)
        self._stages = [
            torch.zeros(shape, dtype=torch.int32, pin_memory=pinned) for _ in range(_STAGES)
        ]
        self._turn = 0

    def send(self) -> None:
        """Copies all to the device, in the current stream."""
        stage = self._stages[self._turn]
        self._turn = (self._turn + 1) % _STAGES
        np.copyto(stage.numpy(), self.host)
        self.device.copy_(stage, non_blocking=True)


class _Table:
    """A tensor on the device and its twin on the host, for what changes when rows change."""

    def __init__(self, shape: tuple[int, ...], *, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.device = torch.zeros(shape, dtype=torch.int32, device=device)
        self._staged = torch.zeros(shape, dtype=torch.int32, pin_memory=pinned)
        self.host: npt.NDArray[np.int32] = self._staged.numpy()
        self._sent = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Waits for the last copy, which nearly always is long done; then `host` may change."""
        if self._sent is not None:
            self._sent.synchronize()

    def send(self, first: int, end: int) -> None:
        """Copies rows `first`..`end` - 1 to the device, in the current stream."""
        self.device[first:end].copy_(self._staged[first:end], non_blocking=True)
        if self._sent is not None:
            self._sent.record()


class StepInputs:
    """The seats of a batch.

    Args:
        layers: what its rows have in common.
        seats: rows of one step at most.
        max_tokens: longest context of a row.
        device: where the steps run.
    """

    def __init__(
        self, layers: BatchLayers, *, seats: int, max_tokens: int, device: torch.device
    ) -> None:
        self.layers = layers
        self.budgets: Numbers = np.zeros(0, dtype=np.int64)
        """Pages K of the seated rows, [S]."""
        self.forced: npt.NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        """Which of them choose even where K covers every page, [S]."""
        self._rows: list[Sequence] = []
        self._prompts: list[PromptKv] = []
        self._room: dict[LengthGroup, Numbers] = {}
        self._fields = _Twin((len(_FIELDS), seats), device=device)
        width = pages_for(max_tokens)
        self._tables = {group: _Table((seats, width), device=device) for group in LengthGroup}
        self._maps = {
            number: torch.zeros((seats, max_tokens), dtype=torch.int32, device=device)
            for number in layers.mapped_classes
        }
        self._clear(0)

    # --- host -------------------------------------------------------------------------------

    def seat(self, rows: list[Sequence], plans: list[RowPlan]) -> None:
        """Gives each row the seat of its place in the list; copies what new ones hold."""
        prompts = list(map(_prompt_of, rows))
        if _same(rows, self._rows) and _same(prompts, self._prompts):
            return
        kept = [
            row is sitting and prompt is held
            for row, prompt, sitting, held in zip(
                rows, prompts, self._rows, self._prompts, strict=False
            )
        ]
        changed = [seat for seat in range(len(rows)) if seat >= len(kept) or not kept[seat]]
        for table in self._tables.values():
            table.wait()
        for seat in changed:
            self._write_static(seat, rows[seat], plans[seat])
        self._clear(len(rows))
        self._rows, self._prompts = list(rows), prompts
        self._room = {
            group: np.array([_slots_of(row, group) for row in rows], dtype=np.int64)
            for group in LengthGroup
        }
        self.budgets = np.array([plan.budget for plan in plans], dtype=np.int64)
        self.forced = np.array([plan.forced for plan in plans], dtype=np.bool_)
        for table in self._tables.values() if changed else ():
            table.send(changed[0], changed[-1] + 1)

    def empty(self) -> None:
        """Everybody leaves: a step then writes nothing and reads nothing."""
        self.seat([], [])
        self._fields.send()

    def lengths(self, *, ahead: int = 0) -> dict[LengthGroup, Numbers]:
        """KV slots of the seated rows, the fed token's included, [S], `ahead` steps from now."""
        after = self._steps() + ahead + 1
        return {
            group: self._fields.host[_OF[f"slots_{name}"], : len(after)] + after
            for group, name in _SUFFIX.items()
        }

    def host_lengths(self, group: LengthGroup, rows: int) -> npt.NDArray[np.int32]:
        """Visible tokens of each seat, int32 [B], as they were sent last: 0 for an empty one."""
        return self._fields.host[_OF[f"length_{_SUFFIX[group]}"], :rows]

    def longest(self, *, ahead: int = 0) -> int:
        """Positions of the longest row, the fed token's included."""
        steps = self._steps() + ahead
        return int((self._fields.host[_OF["prompt"], : len(steps)] + steps).max()) + 1

    def have_room(self, lengths: dict[LengthGroup, Numbers]) -> bool:
        """Whether every row holds pages for so many slots."""
        return all(bool((held <= self._room[group]).all()) for group, held in lengths.items())

    def advance(
        self,
        lengths: dict[LengthGroup, Numbers],
        budgets: Numbers,
        *,
        fed_S: Tensor | None = None,
        ahead: int = 0,
    ) -> None:
        """Copies what changes from step to step.

        Args:
            lengths: as `lengths` gives them.
            budgets: pages that each row may read in a sparse layer, [S].
            fed_S: tokens to feed, where they are on the device and not known yet.
            ahead: steps from now.
        """
        rows = self._rows
        host, seats = self._fields.host[:, : len(rows)], np.arange(len(rows))
        if fed_S is None:
            host[_OF["ids"]] = list(map(_last_of, map(_generated_of, rows)))
        host[_OF["positions"]] = host[_OF["prompt"]] + self._steps() + ahead
        host[_OF["budget"]] = budgets
        for group, name in _SUFFIX.items():
            last = lengths[group] - 1
            page = self._tables[group].host[seats, last // PAGE_SIZE]
            host[_OF[f"length_{name}"]] = lengths[group]
            host[_OF[f"write_{name}"]] = page * PAGE_SIZE + last % PAGE_SIZE
        self._fields.send()
        if fed_S is not None:
            self._field("ids", len(rows)).copy_(fed_S)

    # --- device -----------------------------------------------------------------------------

    def ids(self, rows: int) -> Tensor:
        """Tokens to feed, int32 [B]."""
        return self._field("ids", rows)

    def positions(self, rows: int) -> Tensor:
        """Their positions, int32 [B]."""
        return self._field("positions", rows)

    def write_slots(self, group: LengthGroup, rows: int) -> Tensor:
        """Pool slots of their keys and values, int32 [B]; negative for an empty seat."""
        return self._field(f"write_{_SUFFIX[group]}", rows)

    def tables(self, group: LengthGroup, rows: int) -> PageTables:
        """All pages of every row."""
        lengths_B = self._field(f"length_{_SUFFIX[group]}", rows)
        return PageTables(pages_BM=self._tables[group].device[:rows], lengths_B=lengths_B)

    def choice_budgets(self, rows: int) -> Budgets:
        """Pages that each row may read in a sparse layer."""
        return Budgets(pages_R=self._field("budget", rows), recency_R=self._field("recency", rows))

    def maps(self, slot_class: int, rows: int) -> PositionMaps:
        """Positions of a class's slots."""
        group = self.layers.group_of(self.layers.first_of(slot_class))
        # Every row of a class without a map holds its whole prompt, so that none is read.
        held = self._maps.get(slot_class, self._tables[group].device)
        return PositionMaps(
            positions_BC=held[:rows],
            slots_B=self._field(f"slots_{_SUFFIX[group]}", rows),
            prompt_B=self._field("prompt", rows),
        )

    def _field(self, name: str, rows: int) -> Tensor:
        return self._fields.device[_OF[name], :rows]

    def _steps(self) -> Numbers:
        return np.fromiter(map(_steps_of, self._rows), dtype=np.int64, count=len(self._rows))

    def _write_static(self, seat: int, row: Sequence, plan: RowPlan) -> None:
        fields, prompt = self._fields.host, row.prompt
        fields[_OF["prompt"], seat] = prompt.prompt_tokens
        fields[_OF["recency"], seat] = plan.recency
        for group, name in _SUFFIX.items():
            fields[_OF[f"slots_{name}"], seat] = prompt.slots[group]
            table = self._tables[group].host[seat]
            # A row may hold more pages than the longest context needs; it ends before them.
            pages = prompt.pages.of(group).pages[: len(table)]
            table[: len(pages)] = pages
        for slot_class, held in self._maps.items():
            layer = self.layers.first_of(slot_class)
            positions_RN = prompt.layouts[prompt.layer_layouts[layer]].positions_RN
            if positions_RN is not None:
                # Heads that hold other tokens occur in dense rows alone, which rank nothing.
                held[seat, : positions_RN.shape[1]].copy_(positions_RN[0], non_blocking=True)

    def _clear(self, first: int) -> None:
        fields = self._fields.host
        fields[:, first:] = 0
        fields[_OF["write_front"], first:] = fields[_OF["write_rest"], first:] = -1


def _same(ours: Ordered[object], theirs: Ordered[object]) -> bool:
    """Whether two lists hold the very same objects."""
    return len(ours) == len(theirs) and all(map(operator.is_, ours, theirs))


def _slots_of(row: Sequence, group: LengthGroup) -> int:
    """Slots that a row's pages have; no end where the group has no layers and so no pages."""
    pages = row.prompt.pages.of(group).pages
    return len(pages) * PAGE_SIZE if pages else 1 << 30
