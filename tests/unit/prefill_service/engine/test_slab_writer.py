"""Both writers leave the same slab; the one beside the computation ends with its prompt."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch

from prefill_service.engine.host_slab import HostSlab
from prefill_service.engine.plan import PromptPlan, plan_prompt
from prefill_service.engine.runner import PrefillRunner
from prefill_service.engine.slab_writer import (
    _WAITING,
    DeviceSlabWriter,
    DirectSlabWriter,
    SlabWriter,
    slab_writer,
)
from shared.errors import InternalError
from shared.model.attention import TorchAttention
from shared.model.transformer import Transformer
from shared.types.methods import KvSelect, PruningParams
from shared.types.options import RequestOptions
from tests.support.host_slabs import host_slab

CPU = torch.device("cpu")
TOKENS = 60
PARAMS = PruningParams(pruning_layer=3, deferred_layers=2, keep_rate=0.3, kv_select=KvSelect.HEAD)
MASS = PruningParams(
    pruning_layer=3, deferred_layers=2, mass=0.4, min_rate=0.2, kv_select=KvSelect.SHARED
)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def plan_for(model: Transformer, params: PruningParams) -> PromptPlan:
    return plan_prompt(
        config=model.config,
        geometry=model.geometry(),
        params=params,
        options=RequestOptions(),
        prompt_tokens=TOKENS,
    )


def forget(_done: int) -> None:
    pass


def beside(slab: HostSlab) -> DeviceSlabWriter:
    return DeviceSlabWriter(slab, progressed=forget, device=CPU)


def copying_threads() -> int:
    return sum(thread.name == "prefill-slab" for thread in threading.enumerate())


@pytest.mark.parametrize("params", [PARAMS, MASS], ids=["rate", "mass"])
async def test_both_leave_the_same_slab(
    tiny_model: Transformer, executor: ThreadPoolExecutor, params: PruningParams
) -> None:
    plan = plan_for(tiny_model, params)
    runner = PrefillRunner(tiny_model, attention=TorchAttention(), chunk_tokens=16)
    left = []
    told: list[int] = []
    makers: tuple[Callable[[HostSlab], SlabWriter], ...] = (
        lambda slab: DirectSlabWriter(slab, progressed=told.append),
        lambda slab: DeviceSlabWriter(slab, progressed=told.append, device=CPU),
    )
    for make in makers:
        slab = host_slab(plan.slab, geometry=plan.geometry, executor=executor)
        writer = make(slab)
        output = runner.run(
            token_ids=range(3, 3 + TOKENS), plan=plan, observer=writer, stop=lambda: False
        )
        writer.finish()
        slab.finish()
        writer.close()
        segments = await slab.segments()
        assert slab.layout == output.plan.slab
        left.append([(s, bytes(slab.view(s.offset, s.length).on_host())) for s in segments])
    assert left[0] == left[1]
    assert told[-1] == TOKENS
    assert copying_threads() == 0


@dataclass
class Slab:
    """Stands for a slab whose writes wait, fail, or are counted."""

    gate: threading.Event
    fails_at: int = -1
    written: int = 0
    ends: int = 0

    def begin_writing(self) -> None:
        """It is nobody's lease."""

    def end_writing(self) -> None:
        self.ends += 1

    def write_kv(self, **piece: object) -> None:
        self.gate.wait()
        if self.written == self.fails_at:
            raise InternalError("the runner left its plan")
        self.written += 1


def tell(writer: DeviceSlabWriter, pieces: int) -> None:
    x = torch.zeros(1, 1, 1)
    for slot in range(pieces):
        writer.kv_final(layer=0, first_slot=slot, keys_NGD=x, values_NGD=x)


def opened() -> threading.Event:
    gate = threading.Event()
    gate.set()
    return gate


def test_what_a_copy_fails_with_reaches_the_engine() -> None:
    slab = Slab(opened(), fails_at=2)
    writer = beside(slab)  # type: ignore[arg-type]
    tell(writer, 3 * _WAITING)
    with pytest.raises(InternalError, match="left its plan"):
        writer.finish()
    assert slab.written == 2
    assert slab.ends == 0
    writer.close()
    assert slab.ends == 1
    assert copying_threads() == 0


def test_a_prompt_that_ends_early_drops_what_waits() -> None:
    slab = Slab(threading.Event())
    writer = beside(slab)  # type: ignore[arg-type]
    tell(writer, 10)
    threading.Timer(0.05, slab.gate.set).start()
    writer.close()
    writer.close()
    assert slab.written <= 1
    assert copying_threads() == 0


def test_the_engine_waits_when_too_much_waits() -> None:
    slab = Slab(threading.Event())
    writer = beside(slab)  # type: ignore[arg-type]
    engine = threading.Thread(target=tell, args=(writer, _WAITING + 5))
    engine.start()
    engine.join(0.2)
    assert engine.is_alive()
    slab.gate.set()
    engine.join()
    writer.finish()
    assert slab.written == _WAITING + 5


def test_a_cpu_needs_no_thread() -> None:
    writer = slab_writer(Slab(opened()), progressed=forget, device=CPU)  # type: ignore[arg-type]
    assert isinstance(writer, DirectSlabWriter)
    assert copying_threads() == 0
