import pytest
import torch

from decode_service.sparsity.layouts import KvLayout
from shared.errors import ManifestError
from shared.types.kv_manifest import LayoutSpec, PositionKind


def build(kind: PositionKind, positions: list[list[int]] | None, *, slots: int = 3) -> KvLayout:
    tensor = None if positions is None else torch.tensor(positions, dtype=torch.int32)
    return KvLayout.from_spec(
        LayoutSpec(kind=kind, slots=slots), tensor, prompt_tokens=10, num_kv_heads=2
    )


def test_positions_are_widened() -> None:
    layout = build(PositionKind.SHARED, [[0, 4, 9]])
    assert layout.positions_RN is not None
    assert layout.positions_RN.dtype is torch.int64


def test_an_identity_has_no_positions() -> None:
    assert build(PositionKind.IDENTITY, None, slots=10).positions_RN is None


def test_a_per_head_layout_has_a_row_per_kv_head() -> None:
    assert build(PositionKind.PER_HEAD, [[0, 4, 9], [1, 2, 3]]).slots == 3


@pytest.mark.parametrize(
    ("kind", "positions", "slots"),
    [
        (PositionKind.IDENTITY, [[0, 1, 2]], 10),
        (PositionKind.IDENTITY, None, 9),
        (PositionKind.SHARED, None, 3),
        (PositionKind.SHARED, [[0, 4, 9]], 2),
        (PositionKind.SHARED, [[0, 4, 9], [0, 4, 9]], 3),
        (PositionKind.PER_HEAD, [[0, 4, 9]], 3),
        (PositionKind.SHARED, [[0, 4, 4]], 3),
        (PositionKind.SHARED, [[4, 0, 9]], 3),
        (PositionKind.SHARED, [[-1, 0, 9]], 3),
        (PositionKind.SHARED, [[0, 1, 10]], 3),
    ],
)
def test_damaged_layouts_are_refused(
    kind: PositionKind, positions: list[list[int]] | None, slots: int
) -> None:
    with pytest.raises(ManifestError):
        build(kind, positions, slots=slots)


def mapped(*rows: list[int]) -> KvLayout:
    kind = PositionKind.SHARED if len(rows) == 1 else PositionKind.PER_HEAD
    return KvLayout(kind=kind, slots=len(rows[0]), positions_RN=torch.tensor(rows))


WHOLE = KvLayout(kind=PositionKind.IDENTITY, slots=3, positions_RN=None)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (WHOLE, WHOLE, True),
        (WHOLE, mapped([0, 1, 2]), True),
        (WHOLE, mapped([0, 1, 2], [0, 1, 2]), True),
        (WHOLE, mapped([0, 2]), False),
        (mapped([0, 2]), mapped([0, 2]), True),
        (mapped([0, 2]), mapped([0, 1]), False),
        (mapped([0, 2]), mapped([0, 2], [0, 2]), True),
        (mapped([0, 2]), mapped([0, 2], [0, 1]), False),
        (mapped([0, 2], [0, 1]), mapped([0, 2], [0, 1]), True),
    ],
)
def test_layouts_are_the_same_by_what_they_hold_and_not_by_their_kind(
    one: KvLayout, other: KvLayout, same: bool
) -> None:
    assert one.same_positions(other) is same
    assert other.same_positions(one) is same


def test_positions_follow_the_cache_to_its_device() -> None:
    moved = mapped([0, 2]).on(torch.device("meta")).positions_RN
    assert moved is not None
    assert (moved.device.type, moved.dtype, moved.shape) == ("meta", torch.int64, (1, 2))
    assert WHOLE.on(torch.device("meta")) is WHOLE
