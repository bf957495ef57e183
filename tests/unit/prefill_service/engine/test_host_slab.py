"""Host bytes: written in pieces, read as a feed by as many readers as there are, checksummed."""

import asyncio
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from prefill_service.engine.host_slab import HostSlab, HostSlabs
from prefill_service.engine.plan import plan_prompt
from prefill_service.engine.slab_writer import DeviceSlabWriter, DirectSlabWriter, SlabWriter
from shared.errors import InternalError
from shared.kv.geometry import KvGeometry
from shared.kv.memory import HostMemory
from shared.kv.slab_layout import SlabLayout
from shared.types.methods import KvSelect, PruningParams
from shared.types.options import RequestOptions
from tests.support.host_slabs import host_slab
from tests.support.tiny_model import tiny_config

GEOMETRY = KvGeometry(num_layers=3, num_kv_heads=2, head_dim=4, dtype="bfloat16")
PROMPT, KEPT = 10, 4


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def layout(kept: int = KEPT) -> SlabLayout:
    return SlabLayout.plan(
        GEOMETRY,
        prompt_tokens=PROMPT,
        kept_tokens=kept,
        whole_layers=1,
        pruning_layer=1,
        kv_select=KvSelect.HEAD,
        pruned=True,
    )


def tensors(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (count, 2, 4)
    return torch.randn(shape).bfloat16(), torch.randn(shape).bfloat16()


def fill(slab: HostSlab, *, final: SlabLayout | None = None) -> dict[int, bytes]:
    """Fills a slab as a runner would, settling it where that does; the expected bytes by offset."""
    plan, expected = final or slab.layout, {}
    keys, values = tensors(PROMPT)
    for start, stop in ((0, 7), (7, 10)):
        slab.write_kv(
            layer=0,
            first_slot=start,
            keys_NGD=keys[start:stop],
            values_NGD=values[start:stop],
        )
    whole = torch.stack([keys, values])
    expected[plan.kv_segment(0).offset] = whole.view(torch.uint8).numpy().tobytes()
    slab.settle(plan)
    for layer, rows in ((1, 2), (2, 1)):
        positions = torch.arange(rows * KEPT, dtype=torch.int32).view(rows, KEPT)
        slab.write_positions(layout=layer, positions_RN=positions)
        keys, values = tensors(KEPT)
        slab.write_kv(layer=layer, first_slot=0, keys_NGD=keys, values_NGD=values)
        expected[plan.positions_segment(layer).offset] = positions.numpy().tobytes()
        pair = torch.stack([keys, values])
        expected[plan.kv_segment(layer).offset] = pair.view(torch.uint8).numpy().tobytes()
    slab.finish()
    return expected


async def collect(slab: HostSlab) -> bytearray:
    image = bytearray(slab.nbytes)
    seen = 0
    async for offset, length in slab.ranges():
        image[offset : offset + length] = slab.view(offset, length).on_host()
        seen += length
    assert seen == slab.payload_bytes, "every byte once"
    return image


@pytest.mark.parametrize("planned", [KEPT, KEPT + 1, PROMPT - 1])
async def test_readers_before_during_and_after(executor: ThreadPoolExecutor, planned: int) -> None:
    slab = host_slab(layout(planned), geometry=GEOMETRY, executor=executor)
    early = asyncio.create_task(collect(slab))
    await asyncio.sleep(0)
    expected = await asyncio.to_thread(fill, slab, final=layout())
    assert slab.layout == layout()
    images = [await early, await collect(slab)]
    assert slab.is_complete()
    for segment in await slab.segments():
        piece = expected[segment.offset]
        assert segment.length == len(piece)
        assert segment.crc32 == zlib.crc32(piece)
        for image in images:
            assert image[segment.offset : segment.offset + segment.length] == piece


async def test_a_reader_that_is_cancelled_disturbs_nobody(executor: ThreadPoolExecutor) -> None:
    slab = host_slab(layout(), geometry=GEOMETRY, executor=executor)
    leaving, staying = (asyncio.create_task(collect(slab)) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.to_thread(fill, slab)
    assert len(await staying) == slab.nbytes


async def test_a_runner_that_leaves_its_plan(executor: ThreadPoolExecutor) -> None:
    slab = host_slab(layout(), geometry=GEOMETRY, executor=executor)
    keys, values = tensors(5)
    with pytest.raises(InternalError, match="left its plan"):
        slab.write_kv(layer=1, first_slot=0, keys_NGD=keys, values_NGD=values)
    with pytest.raises(InternalError, match="never written"):
        slab.finish()


async def test_a_final_layout_that_does_not_fit(executor: ThreadPoolExecutor) -> None:
    slab = host_slab(layout(), geometry=GEOMETRY, executor=executor)
    with pytest.raises(InternalError, match="final layout"):
        slab.settle(layout(KEPT + 5))
    fill(slab)
    with pytest.raises(InternalError, match="moves"):
        slab.settle(layout(KEPT - 1))


@pytest.mark.parametrize("threads", [False, True], ids=["copied at once", "copied in a thread"])
async def test_memory_goes_back_when_nobody_writes_to_it_any_more(
    executor: ThreadPoolExecutor, threads: bool
) -> None:
    """A prompt that was given up is closed while its pass still runs."""
    geometry = KvGeometry(num_layers=6, num_kv_heads=2, head_dim=4, dtype="bfloat16")
    plan = plan_prompt(
        config=tiny_config(),
        geometry=geometry,
        params=PruningParams(pruning_layer=2, bypass_below=1000),
        options=RequestOptions(),
        prompt_tokens=PROMPT,
    )
    slabs = HostSlabs(
        HostMemory(plan.slab.total_bytes),
        geometry=geometry,
        executor=executor,
        make_room=lambda: False,
    )
    slab = await slabs.make(plan)
    writer: SlabWriter = (
        DeviceSlabWriter(slab, progressed=lambda _done: None, device=torch.device("cpu"))
        if threads
        else DirectSlabWriter(slab, progressed=lambda _done: None)
    )
    next_one = asyncio.create_task(slabs.make(plan))
    slab.close()
    slab.close()
    await asyncio.sleep(0)
    assert slabs.num_leases == 1
    assert not next_one.done()
    keys, values = tensors(PROMPT)
    writer.kv_final(layer=0, first_slot=0, keys_NGD=keys, values_NGD=values)
    writer.close()
    (await next_one).close()
    assert slabs.num_leases == 0
