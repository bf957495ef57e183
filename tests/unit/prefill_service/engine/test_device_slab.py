"""Slabs leased of one buffer: the bytes of a host slab, their sums, and memory that comes back."""

import asyncio
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from prefill_service.engine.device_slab import DeviceSlab, DeviceSlabs, joined
from prefill_service.engine.held import HeldKv, HeldStore
from prefill_service.engine.host_slab import HostSlab
from prefill_service.engine.parcel import Parcel
from prefill_service.engine.plan import PromptPlan, plan_prompt
from prefill_service.engine.resident_writer import ResidentSlabWriter
from prefill_service.engine.runner import PrefillRunner
from prefill_service.engine.slab_writer import DirectSlabWriter, slab_writer
from shared.errors import InternalError
from shared.kv_memory.tensor_memory import TensorMemory
from shared.kv_memory.weighted_sum import slow_sums, unsigned
from shared.model.attention import TorchAttention
from shared.model.transformer import Transformer
from shared.types.handoff import HandoffState, HandoffStateMachine
from shared.types.kv_manifest import SegmentCheck
from shared.types.methods import KvSelect, PruningParams
from shared.types.options import RequestOptions
from tests.support.host_slabs import host_slab
from tests.support.prefill_jobs import request_of
from tests.support.transfer_parts import MODEL
from tests.support.waiting import until

CPU = torch.device("cpu")
TOKENS = 60
RATE = PruningParams(pruning_layer=3, deferred_layers=2, keep_rate=0.3, kv_select=KvSelect.HEAD)
MASS = PruningParams(
    pruning_layer=3, deferred_layers=2, mass=0.4, min_rate=0.2, kv_select=KvSelect.SHARED
)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def plan_for(model: Transformer, params: PruningParams = RATE, tokens: int = TOKENS) -> PromptPlan:
    return plan_prompt(
        config=model.config,
        geometry=model.geometry(),
        params=params,
        options=RequestOptions(),
        prompt_tokens=tokens,
    )


def slabs_of(model: Transformer, executor: ThreadPoolExecutor, *, nbytes: int) -> DeviceSlabs:
    return DeviceSlabs(
        TensorMemory(nbytes, device="cpu"),
        geometry=model.geometry(),
        executor=executor,
        make_room=lambda: False,
    )


def forget(_done: int) -> None:
    pass


def run(model: Transformer, plan: PromptPlan, slab: DeviceSlab | HostSlab) -> None:
    """Computes a prompt into a slab."""
    writer = (
        slab_writer(slab, progressed=forget, device=CPU)
        if isinstance(slab, DeviceSlab)
        else DirectSlabWriter(slab, progressed=forget)
    )
    runner = PrefillRunner(model, attention=TorchAttention(), chunk_tokens=16)
    try:
        runner.run(token_ids=range(3, 3 + TOKENS), plan=plan, observer=writer, stop=lambda: False)
        writer.finish()
        slab.finish()
    finally:
        writer.close()


@pytest.mark.parametrize("params", [RATE, MASS], ids=["rate", "mass"])
async def test_it_holds_the_bytes_of_a_host_slab_and_both_sums(
    tiny_model: Transformer, executor: ThreadPoolExecutor, params: PruningParams
) -> None:
    plan = plan_for(tiny_model, params)
    host = host_slab(plan.slab, geometry=plan.geometry, executor=executor)
    slabs = slabs_of(tiny_model, executor, nbytes=4 * plan.slab.total_bytes)
    await slabs.make(plan)  # another one lies before
    device = await slabs.make(plan)
    image = bytearray(device.nbytes)
    collecting = asyncio.create_task(collect(device, image))
    await asyncio.to_thread(run, tiny_model, plan, host)
    await asyncio.to_thread(run, tiny_model, plan, device)
    assert await collecting == device.payload_bytes == host.payload_bytes
    summed = await device.segments(SegmentCheck.SUM64)
    for wanted, crc, total in zip(
        await host.segments(), await device.segments(), summed, strict=True
    ):
        assert crc == wanted
        data = bytes(host.view(wanted.offset, wanted.length).on_host())
        assert bytes(image[wanted.offset : wanted.offset + wanted.length]) == data
        assert zlib.crc32(data) == crc.crc32
        [expected] = slow_sums(device._bytes, (total,)).tolist()
        assert total.sum64 == unsigned(expected) != 0
    with pytest.raises(InternalError, match="host memory was asked for"):
        await host.segments(SegmentCheck.SUM64)


async def collect(slab: DeviceSlab, image: bytearray) -> int:
    """Bytes that the feed gave, each put in its place."""
    seen = 0
    async for offset, length in slab.ranges():
        image[offset : offset + length] = slab.view(offset, length).on_host()
        seen += length
    return seen


async def test_the_feed_ends_with_the_last_block_and_not_with_the_prompt(
    tiny_model: Transformer, executor: ThreadPoolExecutor
) -> None:
    """So that a push is sealed while the first token is still computed."""
    plan = plan_for(tiny_model)
    slab = await slabs_of(tiny_model, executor, nbytes=plan.slab.total_bytes).make(plan)
    writer = ResidentSlabWriter(slab, progressed=forget, device=CPU)
    runner = PrefillRunner(tiny_model, attention=TorchAttention(), chunk_tokens=16)
    runner.run(token_ids=range(3, 3 + TOKENS), plan=plan, observer=writer, stop=lambda: False)
    assert await collect(slab, bytearray(slab.nbytes)) == slab.payload_bytes
    assert slab.is_complete()
    writer.finish()
    slab.finish()
    writer.close()


async def test_memory_is_given_back_when_nothing_writes_any_more(
    tiny_model: Transformer, executor: ThreadPoolExecutor
) -> None:
    plan = plan_for(tiny_model)
    slabs = slabs_of(tiny_model, executor, nbytes=plan.slab.total_bytes)
    slab = await slabs.make(plan)
    writer = ResidentSlabWriter(slab, progressed=forget, device=CPU)
    slab.close()
    slab.close()
    assert slabs.num_leases == 1, "the engine may still write"
    waiting = asyncio.create_task(slabs.make(plan))
    await asyncio.sleep(0)
    writer.close()
    writer.close()
    (await waiting).close()
    assert slabs.num_leases == 0


async def test_its_thread_begins_with_the_first_block(
    tiny_model: Transformer, executor: ThreadPoolExecutor
) -> None:
    """Starting one takes as long as several launches, when the device has nothing to do yet."""
    plan = plan_for(tiny_model)
    slab = await slabs_of(tiny_model, executor, nbytes=plan.slab.total_bytes).make(plan)
    writer = ResidentSlabWriter(slab, progressed=forget, device=CPU)
    assert publishing_threads() == 0
    x = torch.zeros(TOKENS, 2, 16)
    writer.kv_final(layer=0, first_slot=0, keys_NGD=x, values_NGD=x)
    assert publishing_threads() == 1
    writer.close()
    assert publishing_threads() == 0


def publishing_threads() -> int:
    return sum(thread.name == "prefill-slab" for thread in threading.enumerate())


async def test_gaps_that_are_too_short_are_joined_by_dropping_holds(
    tiny_model: Transformer, executor: ThreadPoolExecutor
) -> None:
    short, long = plan_for(tiny_model, tokens=30), plan_for(tiny_model, tokens=60)
    nbytes = 2 * short.slab.total_bytes + short.slab.total_bytes
    assert short.slab.total_bytes < long.slab.total_bytes <= 2 * short.slab.total_bytes
    held: list[DeviceSlab] = []

    def make_room() -> bool:
        if held:
            held.pop(0).close()
            return True
        return False

    slabs = DeviceSlabs(
        TensorMemory(nbytes, device="cpu"),
        geometry=tiny_model.geometry(),
        executor=executor,
        make_room=make_room,
    )
    first, middle, last = [await slabs.make(short) for _ in range(3)]
    first.close()
    last.close()
    held.append(middle)
    slab = await slabs.make(long)
    assert not held
    slab.close()
    assert slabs.num_leases == 0


async def test_a_prompt_that_waits_for_a_gap_drops_the_hold_that_lies_in_it(
    tiny_model: Transformer, executor: ThreadPoolExecutor
) -> None:
    """A prompt that ended is held, and one that was resent is still: neither gives memory back."""
    short, long = plan_for(tiny_model, tokens=30), plan_for(tiny_model, tokens=60)
    store = HeldStore(buffer_bytes=1 << 30, sealed_bytes=1 << 30, lease_s=3600.0)
    slabs = DeviceSlabs(
        TensorMemory(3 * short.slab.total_bytes, device="cpu"),
        geometry=tiny_model.geometry(),
        executor=executor,
        make_room=store.make_room,
    )
    store.on_droppable = slabs.look_again
    for resent in (False, True):
        before, middle, after = [await slabs.make(short) for _ in range(3)]
        before.close()
        after.close()
        held = held_of(middle, short)
        if resent:
            store.hold(held)
            async with store.reading(held):
                waiting = asyncio.create_task(slabs.make(long))
                await asyncio.sleep(0)
        else:
            waiting = asyncio.create_task(slabs.make(long))
            await asyncio.sleep(0)
            store.hold(held)
        (await waiting).close()
        assert (len(store), slabs.num_leases) == (0, 0)


def held_of(slab: DeviceSlab, plan: PromptPlan) -> HeldKv:
    request = request_of(plan.prompt_tokens)
    machine = HandoffStateMachine(request.key, state=HandoffState.ADOPTED)
    return HeldKv(Parcel(request, plan=plan, slab=slab, model=MODEL), machine)


async def test_a_runner_that_leaves_its_plan_fails_the_prompt_and_frees_its_slab(
    tiny_model: Transformer, executor: ThreadPoolExecutor
) -> None:
    plan = plan_for(tiny_model)
    slabs = slabs_of(tiny_model, executor, nbytes=plan.slab.total_bytes)
    slab = await slabs.make(plan)
    writer = ResidentSlabWriter(slab, progressed=forget, device=CPU)
    x = torch.zeros(TOKENS + 1, 2, 16)
    with pytest.raises(InternalError, match="left its plan"):
        writer.kv_final(layer=0, first_slot=0, keys_NGD=x, values_NGD=x)
    writer.close()
    slab.close()
    await until(lambda: slabs.num_leases == 0)


async def test_what_the_device_fails_with_reaches_the_engine(
    tiny_model: Transformer, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def synchronize(self) -> None:
            raise RuntimeError("the device fell off the bus")

    plan = plan_for(tiny_model)
    slabs = slabs_of(tiny_model, executor, nbytes=plan.slab.total_bytes)
    slab = await slabs.make(plan)
    writer = ResidentSlabWriter(slab, progressed=forget, device=CPU)
    monkeypatch.setattr(writer, "_mark", Broken)
    x = torch.zeros(TOKENS, 2, 16)
    writer.kv_final(layer=0, first_slot=0, keys_NGD=x, values_NGD=x)
    with pytest.raises(RuntimeError, match="fell off"):
        writer.finish()
    writer.close()


def test_neighbours_that_touch_are_one() -> None:
    assert joined([(0, 4), (4, 4), (12, 4), (8, 4), (16, 1)]) == [(0, 8), (12, 4), (8, 4), (16, 1)]
    assert joined([]) == []


def test_a_long_run_of_neighbours_is_read_in_parts() -> None:
    """A sender has the time of one lease for each, so that a slow one can still arrive."""
    assert joined([(0, 4), (4, 4), (8, 4), (12, 20)], longest=8) == [(0, 8), (8, 4), (12, 20)]


async def test_a_first_sum_is_computed_before_prompts_come(
    tiny_model: Transformer, executor: ThreadPoolExecutor
) -> None:
    slabs_of(tiny_model, executor, nbytes=1 << 16).warm_up()


async def test_what_is_foretold_is_what_is_promised_in_the_end(
    tiny_model: Transformer, executor: ThreadPoolExecutor
) -> None:
    plan = plan_for(tiny_model)
    slab = await slabs_of(tiny_model, executor, nbytes=2 * plan.slab.total_bytes).make(plan)
    request = request_of(plan.prompt_tokens)
    parcel = Parcel(request, plan=plan, slab=slab, model=MODEL)
    parcel.prepare()
    foretold = parcel.foretold(request.key)
    assert foretold is not None
    telling = asyncio.ensure_future(foretold.manifest())
    await asyncio.sleep(0)
    assert not telling.done(), "nothing is written yet"
    await asyncio.to_thread(run, tiny_model, plan, slab)
    ahead, sums = await telling, await foretold.sums()
    whole = await parcel.manifest(request.key, check=SegmentCheck.SUM64)
    assert (ahead.sums_follow, whole.sums_follow) == (True, False)
    assert not any(segment.sum64 for segment in ahead.segments)
    found = zip(ahead.segments, sums, strict=True)
    segments = tuple(replace(segment, sum64=total) for segment, total in found)
    assert replace(ahead, segments=segments, sums_follow=False) == whole


async def test_nothing_is_foretold_of_a_count_that_the_scores_settle_or_of_host_memory(
    tiny_model: Transformer, executor: ThreadPoolExecutor
) -> None:
    mass, rate = plan_for(tiny_model, MASS), plan_for(tiny_model)
    slab = await slabs_of(tiny_model, executor, nbytes=2 * mass.slab.total_bytes).make(mass)
    host = host_slab(rate.slab, geometry=rate.geometry, executor=executor)
    for plan, where in ((mass, slab), (rate, host)):
        request = request_of(plan.prompt_tokens)
        parcel = Parcel(request, plan=plan, slab=where, model=MODEL)
        assert parcel.foretold(request.key) is None
