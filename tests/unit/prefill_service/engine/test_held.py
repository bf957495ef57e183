"""Host memory of prompts that run and of KV that is held."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from prefill_service.engine.held import HeldKv, HeldStore
from prefill_service.engine.parcel import Parcel
from prefill_service.engine.plan import plan_prompt
from shared.errors import HandoffError, InvalidRequestError
from shared.kv.geometry import KvGeometry
from shared.types.handoff import HandoffKey, HandoffState, HandoffStateMachine
from shared.types.methods import PruningParams
from shared.types.model_identity import ModelIdentity
from tests.support.host_slabs import host_slab
from tests.support.prefill_jobs import request_of
from tests.support.stepped_clock import SteppedClock
from tests.support.tiny_model import tiny_config

GEOMETRY = KvGeometry(num_layers=6, num_kv_heads=2, head_dim=16)
MODEL = ModelIdentity(
    name="m", model_hash="h", dtype="float32", num_layers=6, num_kv_heads=2, head_dim=16, rope="r"
)


def held_kv(tokens: int = 16) -> HeldKv:
    request = request_of(tokens)
    plan = plan_prompt(
        config=tiny_config(),
        geometry=GEOMETRY,
        params=PruningParams(pruning_layer=2, bypass_below=1000),
        options=request.options,
        prompt_tokens=tokens,
    )
    with ThreadPoolExecutor(1) as executor:
        slab = host_slab(plan.slab, geometry=GEOMETRY, executor=executor)
    machine = HandoffStateMachine(request.key, state=HandoffState.ADOPTED)
    return HeldKv(Parcel(request, plan=plan, slab=slab, model=MODEL), machine)


def store_of(clock: SteppedClock, *, buffer: int = 1 << 20, sealed: int = 1 << 20) -> HeldStore:
    return HeldStore(buffer_bytes=buffer, sealed_bytes=sealed, lease_s=10.0, clock=clock)


async def test_hold_renew_release_expire() -> None:
    clock = SteppedClock()
    store = store_of(clock)
    one, two, three = held_kv(), held_kv(), held_kv()
    for held in (one, two, three):
        assert store.hold(held)
    assert store.held_bytes == 3 * one.nbytes
    keys = [h.parcel.request.key for h in (one, two, three)]
    clock.now += 9
    unknown = HandoffKey("nobody")
    assert store.renew([keys[0], unknown]) == [unknown]
    assert store.release(keys[1])
    assert not store.release(keys[1])
    assert two.machine.state is HandoffState.RELEASED
    clock.now += 2
    assert store.expire() == 1
    assert three.machine.state is HandoffState.EXPIRED
    assert store.get(keys[0]) is one
    clock.now += 10
    assert store.expire() == 1
    assert (len(store), store.held_bytes, store.expired_total) == (0, 0, 2)


async def test_the_oldest_makes_room_for_a_new_hold() -> None:
    size = held_kv().nbytes
    store = store_of(SteppedClock(), sealed=2 * size)
    holds = [held_kv() for _ in range(3)]
    for held in holds:
        store.hold(held)
    assert [store.get(h.parcel.request.key) is not None for h in holds] == [False, True, True]
    assert not store.hold(held_kv(tokens=64)), "larger than all the room for holds"
    assert len(store) == 2


async def test_running_prompts_push_holds_out_and_wait_for_each_other() -> None:
    size = held_kv().nbytes
    store = store_of(SteppedClock(), buffer=3 * size, sealed=3 * size)
    for _ in range(3):
        store.hold(held_kv())
    await store.admit(2 * size)
    assert (store.active_bytes, store.held_bytes) == (2 * size, size)
    waiting = asyncio.create_task(store.admit(2 * size))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert store.held_bytes == 0
    store.discharge(2 * size)
    await waiting
    store.discharge(2 * size)
    assert store.active_bytes == 0
    with pytest.raises(InvalidRequestError):
        await store.admit(4 * size)


async def test_bytes_that_are_read_stay_counted() -> None:
    store = store_of(SteppedClock())
    held = held_kv()
    store.hold(held)
    async with store.reading(held):
        store.release(held.parcel.request.key)
        assert (store.held_bytes, store.active_bytes) == (0, held.nbytes)
        store.delivered(held, HandoffStateMachine(HandoffKey("late", 2)))
    assert store.active_bytes == 0
    assert store.get(HandoffKey("late", 2)) is None


async def test_a_resend_makes_it_known_under_both_names() -> None:
    clock = SteppedClock()
    store = store_of(clock)
    held = held_kv()
    store.hold(held)
    first = held.parcel.request.key
    second = HandoffKey(first.handoff_id, 2)
    clock.now += 9
    async with store.reading(held):
        store.delivered(held, HandoffStateMachine(second, state=HandoffState.ADOPTED))
    clock.now += 9
    assert store.expire() == 0
    assert store.get(first) is store.get(second) is held
    assert store.release(second)
    assert store.get(first) is None
    store.clear()


class Closing:
    """Counts how often a slab's memory is given back."""

    def __init__(self, held: HeldKv, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        monkeypatch.setattr(held.parcel.slab, "close", self._count)

    def _count(self) -> None:
        self.times += 1


async def test_memory_goes_back_when_a_hold_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SteppedClock()
    store = store_of(clock)
    released, expired, cleared = held_kv(), held_kv(), held_kv()
    closings = [Closing(held, monkeypatch) for held in (released, expired, cleared)]
    for held in (released, expired):
        store.hold(held)
    store.release(released.parcel.request.key)
    clock.now += 11
    store.expire()
    store.hold(cleared)
    assert [c.times for c in closings] == [1, 1, 0]
    store.clear()
    assert [c.times for c in closings] == [1, 1, 1]


async def test_memory_that_is_read_goes_back_after_its_readers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = store_of(SteppedClock())
    read, idle = held_kv(), held_kv()
    closings = [Closing(held, monkeypatch) for held in (read, idle)]
    store.hold(read)
    store.hold(idle)
    async with store.reading(read):
        assert store.make_room(), "the one that nobody reads"
        assert [c.times for c in closings] == [0, 1]
        assert not store.make_room()
        store.release(read.parcel.request.key)
        waiting = asyncio.create_task(enter(store, read))
        await asyncio.sleep(0)
        assert closings[0].times == 0
    assert closings[0].times == 1
    with pytest.raises(HandoffError, match="nothing is held any more"):
        await waiting
    assert (store.active_bytes, closings[0].times) == (0, 1)


async def enter(store: HeldStore, held: HeldKv) -> None:
    async with store.reading(held):
        pass
