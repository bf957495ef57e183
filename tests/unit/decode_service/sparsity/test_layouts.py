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
