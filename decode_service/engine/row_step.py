"""One step of one row: what its policy chooses becomes physical reads.

A row whose policy chooses nothing in a layer reads everything there, on the same code path as
dense. Nothing of the row changes before `commit`.

Shapes: H query heads, D head size.
"""

import torch

from decode_service.engine.kv_cache import LengthGroup, PagedKvCache
from decode_service.engine.kv_read import KvRead, chosen_read, whole_read
from decode_service.engine.sequence import Sequence
from decode_service.sparsity.base import Evidence, LayerKv, Selection
from shared.kv.geometry import PAGE_SIZE


class RowStep:
    """Plans the reads of one row for one step.

    Args:
        row: the row, before the step.
        cache: where its pages are.
    """

    def __init__(self, row: Sequence, cache: PagedKvCache) -> None:
        self.row = row
        self.attended = 0
        """Slots read so far in this step, summed over layers. Where heads choose apart, all read
        equally many slots, and these count once."""
        self._cache = cache
        self._policy = row.row_policy.step(generated=row.steps + 1)
        self._lengths = {group: row.kv_length(group) + 1 for group in LengthGroup}
        self._whole = {
            group: whole_read(row.prompt.pages.of(group), length=self._lengths[group])
            for group in LengthGroup
        }
        self._chosen: dict[LengthGroup, KvRead] = {}
        self._refreshes = 0

    def write_slot(self, group: LengthGroup) -> int:
        """Pool slot that takes the fed token's keys and values."""
        last = self._lengths[group] - 1
        page = self.row.prompt.pages.of(group).pages[last // PAGE_SIZE]
        return page * PAGE_SIZE + last % PAGE_SIZE

    def whole(self, layer: int) -> KvRead:
        """All slots of a layer."""
        return self._whole[self._cache.group_of(layer)]

    def select(self, layer: int, q_HD: torch.Tensor, kv: LayerKv) -> KvRead:
        """What a layer reads; counts it."""
        selection = self._policy.select(layer, q_HD, kv)
        read = self.whole(layer) if selection is None else self._read_of(layer, selection)
        self.attended += read.slots
        return read

    def evidence(self, layer: int) -> Evidence:
        """What `observe` of a layer must be given."""
        return self._policy.evidence(layer)

    def observe(self, layer: int, evidence: torch.Tensor) -> None:
        """Gives the policy what it wanted to know of a layer."""
        self._policy.observe(layer, evidence)
        self._refreshes += 1

    def commit(self, token_id: int) -> None:
        """The step succeeded and gave a token: the policy and the row move on."""
        self._policy.commit()
        move_on(self.row, token_id, attended=self.attended, refreshes=self._refreshes)

    def _read_of(self, layer: int, selection: Selection) -> KvRead:
        """Layers of a group that share a choice share its places as well."""
        group = self._cache.group_of(layer)
        read = self._chosen.get(group)
        if read is None or read.selection is not selection:
            assert 0 < selection.visible <= self._lengths[group], "a choice among the row's slots"
            read = chosen_read(
                selection,
                self.row.prompt.pages.of(group),
                num_kv_heads=self._cache.geometry.num_kv_heads,
            )
            self._chosen[group] = read
        return read


def move_on(row: Sequence, token_id: int, *, attended: int, refreshes: int) -> None:
    """A step of a row has given a token, whatever path it took.

    Args:
        row: changes.
        token_id: the token.
        attended: slots that the step read, summed over layers.
        refreshes: choices that it made anew.
    """
    row.attended += attended
    row.refreshes += refreshes
    row.dense += len(row.prompt.layer_layouts) * (row.position + 1)
    row.steps += 1
    row.draws += 1
    row.generated.append(token_id)
    if row.matcher is not None:
        row.matcher.accept(token_id)
