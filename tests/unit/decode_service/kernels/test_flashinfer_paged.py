"""What the library is told of the rows: plans on the host, pages on the device."""

import numpy as np
import pytest
import torch

from decode_service.kernels.flashinfer_paged import FlashInferPaged, PagedHeads, make_workspace
from decode_service.kernels.paged_attention import PageTables
from tests.support import attention_libraries as libraries
from tests.support.kernel_rows import DEVICE, make_rows
from tests.unit.decode_service.kernels.slow_attention import slow_attention

pytestmark = pytest.mark.skipif(DEVICE.type == "cuda", reason="the stand-in computes on a CPU")

HEADS = PagedHeads(num_heads=6, num_kv_heads=2, head_dim=64, dtype=torch.float32)


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    wrapper = libraries.BatchDecodeWithPagedKVCacheWrapper
    libraries.install(monkeypatch, flashinfer={"BatchDecodeWithPagedKVCacheWrapper": wrapper})


def make_paged(*, rows: int, width: int) -> FlashInferPaged:
    workspace = make_workspace(HEADS, max_rows=rows, device=DEVICE)
    return FlashInferPaged(HEADS, rows=rows, width=width, workspace=workspace)


def attend(paged: FlashInferPaged, rows, out_BHD) -> None:
    paged.plan(np.array(rows.lengths, dtype=np.int32))
    paged.gather(rows.tables)
    paged.attend(rows.q_BHD, (rows.keys_PSGD, rows.values_PSGD), out_BHD=out_BHD)


@pytest.mark.parametrize(
    "lengths", [(1, 15, 16, 17), (0, 33, 0, 48), (0, 0, 0, 0), (100, 1, 64, 0)], ids=str
)
def test_equals_the_slow_twin(lengths):
    rows = make_rows(lengths, kv_heads=2, group=3, head_dim=64)
    out_BHD = torch.full_like(rows.q_BHD, torch.nan)
    attend(make_paged(rows=4, width=rows.tables.pages_BM.shape[1]), rows, out_BHD)
    torch.testing.assert_close(out_BHD.double(), slow_attention(rows), atol=1e-5, rtol=1e-5)


def test_the_same_buffers_serve_other_rows_and_wider_tables():
    paged = make_paged(rows=2, width=5)
    for lengths in ((70, 3), (2, 0), (31, 80)):
        rows = make_rows(lengths, kv_heads=2, group=3, head_dim=64)
        wide = torch.nn.functional.pad(rows.tables.pages_BM, (0, 7), value=-9)
        tables = PageTables(pages_BM=wide, lengths_B=rows.tables.lengths_B)
        paged.plan(np.array(lengths, dtype=np.int32))
        paged.gather(tables)
        out_BHD = torch.full_like(rows.q_BHD, torch.nan)
        paged.attend(rows.q_BHD, (rows.keys_PSGD, rows.values_PSGD), out_BHD=out_BHD)
        torch.testing.assert_close(out_BHD.double(), slow_attention(rows), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "rows", "tiles", "tile"),
    [(12, 2, 64, 24 + 64, 16), (32, 8, 256, 64 + 256, 16), (64, 2, 256, 128 + 256, 64)],
)
def test_pieces_of_many_rows_find_room(heads, kv_heads, rows, tiles, tile):
    """Tiles as the library bounds them: `PrefillSplitQOKVIndptr` of its scheduler, by hand."""
    of = PagedHeads(num_heads=heads, num_kv_heads=kv_heads, head_dim=128, dtype=torch.bfloat16)
    room = make_workspace(of, max_rows=rows, device=DEVICE).numel()
    assert room == heads * tiles * tile * (128 + 1) * 4 + (1 << 20)


@pytest.mark.parametrize("rows", [1, 4_000, 20_000])
def test_the_plan_of_a_step_finds_room_however_many_rows_it_has(monkeypatch, rows):
    """17 bytes a tile (of 16 query rows, one a KV head here, and one a row) and 8 a row."""
    given = []

    class Noted(libraries.BatchDecodeWithPagedKVCacheWrapper):
        def reset_workspace_buffer(self, float_workspace_buffer, int_workspace_buffer):
            given.append(int_workspace_buffer.numel())
            super().reset_workspace_buffer(float_workspace_buffer, int_workspace_buffer)

    libraries.install(monkeypatch, flashinfer={"BatchDecodeWithPagedKVCacheWrapper": Noted})
    workspace = torch.zeros(1, dtype=torch.uint8)
    FlashInferPaged(HEADS, rows=rows, width=2, workspace=workspace)
    (room,) = given
    tiles = -(-rows * 3 // 16) + rows
    assert room > 17 * tiles + 8 * (rows + 1)
    assert room <= max(1 << 18, 64 * rows)
