"""Steps whose dense layers a library computes: it is planned for the rows of every step.

A stand-in of the library computes on the CPU; it finds rows in its buffers alone.
"""

import pytest

from decode_service.engine.batched.dense_attention import flashinfer_maker
from shared.types.methods import SparsityParams
from tests.support import attention_libraries as libraries
from tests.support.batch_rows import MAX_BATCH, RowKind, TwoPaths
from tests.support.kernel_rows import DEVICE

pytestmark = pytest.mark.skipif(
    DEVICE.type == "cuda", reason="rows of these tests live on the CPU, where the interpreter runs"
)

DELTA = SparsityParams(full_layers=(0, 1, 3), page_budget=4, recency_pages=1)


@pytest.fixture
def ran(monkeypatch):
    """Layers that the library computed."""
    layers = []

    class Noted(libraries.BatchDecodeWithPagedKVCacheWrapper):
        def run(self, q, paged_kv_cache, *, out):
            layers.append(paged_kv_cache[0].data_ptr())
            return super().run(q, paged_kv_cache, out=out)

    libraries.install(monkeypatch, flashinfer={"BatchDecodeWithPagedKVCacheWrapper": Noted})
    return layers


@pytest.fixture
def two(tiny_model, ran):
    dense = flashinfer_maker(
        tiny_model.config, tiny_model.dtype, max_rows=MAX_BATCH, device=tiny_model.device
    )
    return TwoPaths(tiny_model, dense=dense)


def test_dense_rows_over_page_edges(two, ran):
    rows = [
        two.add(RowKind(sparsity=None, tokens=tokens, kept=kept, mode="shared"))
        for tokens, kept in ((95, 63), (70, 64))
    ]
    rows.append(two.add(RowKind(sparsity=None, tokens=17)))
    for _ in range(3):
        two.step(rows)
    assert len(ran) == 3 * len(two.model.layers)


def test_layers_that_choose_or_read_chosen_pages_stay_ours(two, ran):
    row = two.add(RowKind(sparsity=DELTA, tokens=120, kept=90, mode="shared"))
    two.step([row])
    first_layer = two.cache.pool_of(0).paged(0)[0].data_ptr()
    assert ran == [first_layer], "1 and 3 choose, the others read what was chosen"


def test_rows_come_and_go(two):
    long = two.add(RowKind(sparsity=DELTA, tokens=130))
    dense = two.add(RowKind(sparsity=None, tokens=100, kept=60, mode="shared"))
    two.step([long, dense])
    two.release(long)
    two.step([dense])
    late = two.add(RowKind(sparsity=None, tokens=20))
    two.step([late, dense])
