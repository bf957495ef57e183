"""Rotation and storing in one launch against the model's own rotation, element by element."""

import pytest
import torch

from decode_service.kernels.rotate_store import Rotation, rotate_and_store
from shared.model.rope import Rope, rotate
from shared.model.rope_config import RopeConfig
from tests.support.kernel_rows import DEVICE


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(1, 1, 16), (6, 2, 64), (7, 1, 128), (4, 4, 256)]
)
def test_equals_the_models_rotation_and_leaves_other_slots_alone(heads, kv_heads, head_dim):
    rows, slots = 3, [5, -1, 0]
    generator = torch.Generator().manual_seed(1)
    flat = torch.randn((rows, heads + 2 * kv_heads, head_dim), generator=generator).to(DEVICE)
    rope = Rope(RopeConfig(), head_dim=head_dim, device=DEVICE)
    positions = torch.tensor([0, 7, 100_000])
    table = rope.table(positions, context_tokens=1, dtype=torch.float32)
    memory = torch.full((8, 2, kv_heads, head_dim), torch.nan, device=DEVICE)
    keys, values = memory[:, 0], memory[:, 1]
    q_BHD = torch.full((rows, heads, head_dim), torch.nan, device=DEVICE)
    rotate_and_store(
        flat,
        Rotation(cos_BD=table.cos_TD, sin_BD=table.sin_TD),
        (keys, values),
        torch.tensor(slots, dtype=torch.int32, device=DEVICE),
        q_BHD=q_BHD,
    )
    turned = rotate(flat[:, : heads + kv_heads], table)
    torch.testing.assert_close(q_BHD, turned[:, :heads])
    for row, slot in enumerate(slots):
        if slot >= 0:
            torch.testing.assert_close(keys[slot], turned[row, heads:])
            assert torch.equal(values[slot], flat[row, heads + kv_heads :])
    untouched = [slot for slot in range(8) if slot not in slots]
    assert memory[untouched].isnan().all()


def test_float16_rounds_once():
    flat = torch.randn((2, 3, 64), generator=torch.Generator().manual_seed(2)).to(DEVICE)
    half = flat.half()
    rope = Rope(RopeConfig(), head_dim=64, device=DEVICE)
    table = rope.table(torch.tensor([3, 900]), context_tokens=1, dtype=torch.float16)
    memory = torch.zeros((2, 2, 1, 64), dtype=torch.float16, device=DEVICE)
    q_BHD = torch.empty((2, 1, 64), dtype=torch.float16, device=DEVICE)
    rotate_and_store(
        half,
        Rotation(cos_BD=table.cos_TD, sin_BD=table.sin_TD),
        (memory[:, 0], memory[:, 1]),
        torch.tensor([1, 0], dtype=torch.int32, device=DEVICE),
        q_BHD=q_BHD,
    )
    cos, sin = table.cos_TD.float()[:, None], table.sin_TD.float()[:, None]
    low, high = half[:, :1].float().chunk(2, dim=-1)
    wanted = half[:, :1].float() * cos + torch.cat((-high, low), dim=-1) * sin
    torch.testing.assert_close(q_BHD, wanted.half(), atol=0, rtol=1e-3)
