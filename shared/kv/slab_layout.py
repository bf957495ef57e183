"""Where each layer's keys and values, and the positions of their slots, lie in a landing slab.

Order of the segments is the order in which they become final: whole layers, then the layers up to
the pruning layer, then the rest. Positions lie directly before the first layer that uses them.
Shapes: G KV heads, D head size.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from shared.errors import InvalidRequestError
from shared.kv.geometry import KvGeometry
from shared.types.kv_manifest import LayoutSpec, PositionKind, Segment, SegmentKind
from shared.types.methods import KvSelect

ALIGNMENT = 64
"""Every segment and every lease begins at a multiple of this many bytes."""

POSITION_BYTES = 4
"""Bytes of one shipped position (int32)."""


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class SlabLayout:
    """The plan of one handoff's slab; checksums are 0 until the bytes exist."""

    total_bytes: int
    """Bytes to reserve."""
    layouts: tuple[LayoutSpec, ...]
    """Slot-to-position maps; layout 0 is the identity over the prompt."""
    layer_layouts: tuple[int, ...]
    """Layout of each layer."""
    segments: tuple[Segment, ...]
    """Every segment, ascending in offset."""

    @classmethod
    def plan(  # noqa: PLR0913  a prompt's layout has these six degrees of freedom
        cls,
        geometry: KvGeometry,
        *,
        prompt_tokens: int,
        kept_tokens: int,
        whole_layers: int,
        pruning_layer: int,
        kv_select: KvSelect,
        pruned: bool,
    ) -> "SlabLayout":
        """Lays a prompt out.

        Args:
            geometry: shape of the cache.
            prompt_tokens: KV slots of a whole layer.
            kept_tokens: KV slots of a pruned layer.
            whole_layers: layers 0..whole_layers-1 keep the prompt, capped at pruning_layer + 1;
                ignored when not pruned.
            pruning_layer: lp; later layers ran on kept tokens only.
            kv_select: whose positions layers whole_layers..lp keep.
            pruned: False gives every layer the identity.

        Raises:
            InvalidRequestError: the counts contradict each other.
        """
        if not pruned:
            _check_counts(geometry, prompt_tokens, prompt_tokens, geometry.num_layers)
            layer_layouts: tuple[int, ...] = (0,) * geometry.num_layers
            layouts: tuple[LayoutSpec, ...] = (_identity(prompt_tokens),)
        else:
            whole = min(whole_layers, pruning_layer + 1, geometry.num_layers)
            _check_counts(geometry, prompt_tokens, kept_tokens, whole)
            layouts, layer_layouts = _assign_layouts(
                _LayerRanges(whole=whole, middle_end=pruning_layer + 1, end=geometry.num_layers),
                kv_select=kv_select,
                prompt_tokens=prompt_tokens,
                kept_tokens=kept_tokens,
            )
        segments = tuple(_place(geometry, layouts, layer_layouts))
        total = aligned(segments[-1].offset + segments[-1].length)
        return cls(
            total_bytes=total, layouts=layouts, layer_layouts=layer_layouts, segments=segments
        )

    def kv_segment(self, layer: int) -> Segment:
        """The segment of one layer's keys and values, [2, slots, G, D]."""
        return self._find(SegmentKind.KV, layer)

    def positions_segment(self, layout: int) -> Segment:
        """The segment of one layout's positions, int32 [rows, slots]; an identity has none."""
        return self._find(SegmentKind.POSITIONS, layout)

    def slots_of(self, layer: int) -> int:
        """KV slots of the prompt in one layer."""
        return self.layouts[self.layer_layouts[layer]].slots

    def _find(self, kind: SegmentKind, index: int) -> Segment:
        for segment in self.segments:
            if segment.kind is kind and segment.index == index:
                return segment
        raise KeyError(f"no {kind.value} segment {index} in this slab layout")


@dataclass(frozen=True, slots=True, kw_only=True)
class _LayerRanges:
    whole: int
    middle_end: int
    end: int


def _identity(prompt_tokens: int) -> LayoutSpec:
    return LayoutSpec(kind=PositionKind.IDENTITY, slots=prompt_tokens)


def _check_counts(geometry: KvGeometry, prompt: int, kept: int, whole: int) -> None:
    if not 1 <= kept <= prompt or not 0 <= whole <= geometry.num_layers:
        raise InvalidRequestError(
            f"no slab fits {kept} kept of {prompt} prompt tokens with {whole} whole layers of "
            f"{geometry.num_layers}: 1 <= kept <= prompt and 0 <= whole <= layers must hold"
        )


def _assign_layouts(
    ranges: _LayerRanges, *, kv_select: KvSelect, prompt_tokens: int, kept_tokens: int
) -> tuple[tuple[LayoutSpec, ...], tuple[int, ...]]:
    layouts = [_identity(prompt_tokens)]
    layer_layouts = [0] * ranges.whole
    shared = LayoutSpec(kind=PositionKind.SHARED, slots=kept_tokens)
    own_kind = PositionKind.PER_HEAD if kv_select is KvSelect.HEAD else PositionKind.SHARED
    rest_from = ranges.whole
    if kv_select is not KvSelect.SHARED:
        rest_from = max(ranges.whole, min(ranges.middle_end, ranges.end))
        for _ in range(ranges.whole, rest_from):
            layer_layouts.append(len(layouts))
            layouts.append(LayoutSpec(kind=own_kind, slots=kept_tokens))
    if rest_from < ranges.end:
        layer_layouts.extend([len(layouts)] * (ranges.end - rest_from))
        layouts.append(shared)
    return tuple(layouts), tuple(layer_layouts)


def _place(
    geometry: KvGeometry, layouts: tuple[LayoutSpec, ...], layer_layouts: tuple[int, ...]
) -> Iterator[Segment]:
    offset = 0
    placed: set[int] = set()
    kv_lengths = [geometry.kv_bytes(layout.slots) for layout in layouts]
    for layer, index in enumerate(layer_layouts):
        layout = layouts[index]
        if index not in placed and layout.kind is not PositionKind.IDENTITY:
            rows = geometry.num_kv_heads if layout.kind is PositionKind.PER_HEAD else 1
            length = rows * layout.slots * POSITION_BYTES
            yield Segment(kind=SegmentKind.POSITIONS, index=index, offset=offset, length=length)
            offset += aligned(length)
        placed.add(index)
        length = kv_lengths[index]
        yield Segment(kind=SegmentKind.KV, index=layer, offset=offset, length=length)
        offset += aligned(length)
