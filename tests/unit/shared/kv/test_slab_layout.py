"""Where everything lies in a slab."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import InvalidRequestError
from shared.kv.geometry import KvGeometry
from shared.kv.slab_layout import ALIGNMENT, SlabLayout
from shared.types.kv_manifest import PositionKind, SegmentKind
from shared.types.methods import KvSelect

GEOMETRY = KvGeometry(num_layers=8, num_kv_heads=2, head_dim=4)


def _plan(select: KvSelect, **changes: int) -> SlabLayout:
    values = {"prompt_tokens": 100, "kept_tokens": 20, "whole_layers": 2, "pruning_layer": 4}
    return SlabLayout.plan(GEOMETRY, **(values | changes), kv_select=select, pruned=True)


def _order(layout: SlabLayout) -> str:
    letters = {SegmentKind.KV: "L", SegmentKind.POSITIONS: "p"}
    return " ".join(f"{letters[s.kind]}{s.index}" for s in layout.segments)


def test_unpruned_is_one_identity() -> None:
    layout = SlabLayout.plan(
        GEOMETRY,
        prompt_tokens=100,
        kept_tokens=100,
        whole_layers=2,
        pruning_layer=4,
        kv_select=KvSelect.HEAD,
        pruned=False,
    )
    assert layout.layer_layouts == (0,) * 8
    assert [spec.kind for spec in layout.layouts] == [PositionKind.IDENTITY]
    assert _order(layout) == "L0 L1 L2 L3 L4 L5 L6 L7"
    assert layout.total_bytes == 8 * GEOMETRY.kv_bytes(100)


def test_shared_has_one_set_for_all_pruned_layers() -> None:
    layout = _plan(KvSelect.SHARED)
    assert layout.layer_layouts == (0, 0, 1, 1, 1, 1, 1, 1)
    assert _order(layout) == "L0 L1 p1 L2 L3 L4 L5 L6 L7"
    assert layout.positions_segment(1).length == 20 * 4


@pytest.mark.parametrize(
    ("select", "kind", "rows"),
    [(KvSelect.LAYER, PositionKind.SHARED, 1), (KvSelect.HEAD, PositionKind.PER_HEAD, 2)],
)
def test_own_sets_up_to_the_pruning_layer(select: KvSelect, kind: PositionKind, rows: int) -> None:
    layout = _plan(select)
    assert layout.layer_layouts == (0, 0, 1, 2, 3, 4, 4, 4)
    assert [spec.kind for spec in layout.layouts[1:]] == [kind] * 3 + [PositionKind.SHARED]
    assert _order(layout) == "L0 L1 p1 L2 p2 L3 p3 L4 p4 L5 L6 L7"
    assert layout.positions_segment(2).length == rows * 20 * 4
    assert layout.positions_segment(4).length == 20 * 4


def test_whole_layers_end_at_the_pruning_layer() -> None:
    for select in KvSelect:
        assert _plan(select, pruning_layer=1, whole_layers=4).layer_layouts == (0, 0, *[1] * 6)


def test_pruning_at_the_last_layer_leaves_no_rest() -> None:
    layout = _plan(KvSelect.HEAD, pruning_layer=7)
    assert layout.layer_layouts == (0, 0, 1, 2, 3, 4, 5, 6)
    assert len(layout.layouts) == 7


def test_no_whole_layers() -> None:
    layout = _plan(KvSelect.SHARED, whole_layers=0)
    assert layout.layer_layouts == (1,) * 8
    assert layout.layouts[0].kind is PositionKind.IDENTITY


@given(
    prompt=st.integers(1, 300),
    share=st.floats(0.01, 1.0),
    whole=st.integers(0, 8),
    lp=st.integers(0, 7),
    select=st.sampled_from(KvSelect),
    pruned=st.booleans(),
)
def test_segments_are_aligned_apart_and_complete(prompt, share, whole, lp, select, pruned) -> None:
    layout = SlabLayout.plan(
        GEOMETRY,
        prompt_tokens=prompt,
        kept_tokens=max(1, int(prompt * share)),
        whole_layers=whole,
        pruning_layer=lp,
        kv_select=select,
        pruned=pruned,
    )
    end = 0
    for segment in layout.segments:
        assert segment.offset % ALIGNMENT == 0
        assert end <= segment.offset < end + ALIGNMENT
        end = segment.offset + segment.length
    assert end <= layout.total_bytes < end + ALIGNMENT
    for layer in range(8):
        segment = layout.kv_segment(layer)
        assert segment.length == GEOMETRY.kv_bytes(layout.slots_of(layer))
        used = layout.layer_layouts[layer]
        if layout.layouts[used].kind is not PositionKind.IDENTITY:
            assert layout.positions_segment(used).offset < segment.offset
    used_layouts = set(layout.layer_layouts) | {0}
    assert used_layouts == set(range(len(layout.layouts)))


def test_an_identity_ships_no_positions() -> None:
    with pytest.raises(KeyError):
        _plan(KvSelect.SHARED).positions_segment(0)


@pytest.mark.parametrize(
    "changes",
    [{"kept_tokens": 0}, {"kept_tokens": 101}, {"prompt_tokens": 0}, {"whole_layers": -1}],
)
def test_contradicting_counts_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(InvalidRequestError):
        _plan(KvSelect.SHARED, **changes)
