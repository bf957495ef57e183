"""One launch against the copies that a host slab takes, layer by layer, at awkward sizes."""

import pytest
import torch

from decode_service.engine.kv_cache import LengthGroup, PagedKvCache, SequencePages
from decode_service.kernels.scatter_prompt import LandedLayers, PagePool, scatter_prompt
from shared.kv.geometry import KvGeometry
from tests.support.kernel_rows import DEVICE


def cache_of(geometry: KvGeometry, *, whole: int, pages: int) -> PagedKvCache:
    return PagedKvCache(
        geometry,
        whole_layers=whole,
        pages_front=pages,
        pages_rest=pages,
        device=DEVICE,
        poison=True,
    )


def scattered(cache: PagedKvCache, *, front: int, rest: int) -> SequencePages:
    """A row whose pages are not in one run, where it has more than one."""
    first = cache.reserve(front_tokens=1, rest_tokens=1)
    second = cache.reserve(front_tokens=1, rest_tokens=1)
    assert first is not None
    assert second is not None
    cache.release(first)
    held = cache.reserve(front_tokens=front, rest_tokens=rest)
    assert held is not None
    return held


@pytest.mark.parametrize(
    ("heads", "head_dim", "whole", "front", "rest"),
    [
        (1, 1, 1, 1, 1),
        (2, 16, 2, 33, 7),
        (1, 80, 0, 16, 16),
        (3, 24, 4, 50, 1),
        (8, 128, 1, 47, 31),
        (2, 256, 3, 17, 48),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("runs", [(None,), (range(3, 4), range(3))], ids=["at once", "in runs"])
def test_equals_the_copies_of_each_layer(
    heads: int,
    head_dim: int,
    whole: int,
    front: int,
    rest: int,
    dtype: str,
    runs: tuple[range | None, ...],
) -> None:
    geometry = KvGeometry(num_layers=4, num_kv_heads=heads, head_dim=head_dim, dtype=dtype)
    slow, fast = (cache_of(geometry, whole=whole, pages=8) for _ in range(2))
    rows = [scattered(cache, front=front, rest=rest) for cache in (slow, fast)]
    slots = [front if layer < whole else rest for layer in range(4)]
    pieces, layers, at = [], [], 32  # what lies before is not read
    generator = torch.Generator().manual_seed(1)
    for layer, count in enumerate(slots):
        kv = torch.randn((2, count, heads, head_dim), generator=generator)
        kv = kv.to(DEVICE, getattr(torch, dtype))
        slow.write_prompt(rows[0], layer=layer, keys_NGD=kv[0], values_NGD=kv[1])
        second = layer >= whole
        layers.append((at, count, int(second), layer - whole if second else layer))
        pieces.append((at, kv.flatten()))
        at += -(-kv.numel() // 32) * 32
    slab = torch.full((at,), torch.nan, dtype=getattr(torch, dtype), device=DEVICE)
    for start, flat in pieces:
        slab[start : start + flat.numel()] = flat
    pools = {
        group: PagePool(memory=fast.pools[group].memory, table=rows[1].of(group).table)
        for group in LengthGroup
    }
    for run in runs:
        scatter_prompt(
            LandedLayers(
                slab=slab,
                layers_L4=torch.tensor(layers, device=DEVICE),
                most_slots=max(slots if run is None else slots[run.start : run.stop]),
                run=run,
            ),
            front=pools[LengthGroup.FRONT],
            rest=pools[LengthGroup.REST],
        )
    for group in LengthGroup:
        wanted, found = slow.pools[group].memory, fast.pools[group].memory
        assert wanted.numel() == 0 or not wanted.isnan().all()
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
