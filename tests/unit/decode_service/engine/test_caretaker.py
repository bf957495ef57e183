"""Leases, progress and readiness on a clock of their own."""

from dataclasses import dataclass, field
from typing import cast

from decode_service.engine.caretaker import CareSettings, Caretaker
from decode_service.engine.worker import DecodeWorker
from shared.errors import InternalError


@dataclass
class FakeEngine:
    healthy: bool = True
    crashed: bool = False
    stalled_seconds: float = 0.0


@dataclass
class FakeTable:
    draining: bool = False
    reaped: int = 0
    broken: bool = False

    def reap(self) -> None:
        self.reaped += 1
        if self.broken:
            raise InternalError("a page was lost; report this")


@dataclass
class Rig:
    engine: FakeEngine = field(default_factory=FakeEngine)
    table: FakeTable = field(default_factory=FakeTable)
    ready: list[bool] = field(default_factory=list)
    looks: int = 0
    ends: list[str] = field(default_factory=list)

    def caretaker(self) -> Caretaker:
        async def on_ready(ready: bool) -> None:
            self.ready.append(ready)

        async def on_look() -> None:
            self.looks += 1

        return Caretaker(
            cast("DecodeWorker", self),
            settings=CareSettings(stall_s=5.0, stall_exit_s=50.0),
            on_ready=on_ready,
            on_look=on_look,
            give_up=self.ends.append,
        )


async def test_readiness_is_told_on_change_only() -> None:
    rig = Rig()
    caretaker = rig.caretaker()
    await caretaker.look()
    await caretaker.look()
    rig.engine.stalled_seconds = 6.0
    await caretaker.look()
    rig.engine.stalled_seconds = 0.0
    await caretaker.look()
    rig.table.draining = True
    await caretaker.look()
    assert rig.ready == [True, False, True, False]
    assert caretaker.alive
    assert rig.looks == rig.table.reaped == 5
    assert rig.ends == []


async def test_failing_steps_are_not_alive() -> None:
    rig = Rig(engine=FakeEngine(healthy=False))
    caretaker = rig.caretaker()
    await caretaker.look()
    assert not caretaker.alive
    assert rig.ready == [False]
    assert rig.ends == [], "a failing engine may heal"


async def test_a_stuck_or_crashed_engine_is_given_up_once() -> None:
    for engine in (FakeEngine(stalled_seconds=50.0), FakeEngine(healthy=False, crashed=True)):
        rig = Rig(engine=engine)
        caretaker = rig.caretaker()
        await caretaker.look()
        await caretaker.look()
        assert len(rig.ends) == 1


async def test_a_broken_table_does_not_stop_the_watch() -> None:
    rig = Rig(table=FakeTable(broken=True))
    caretaker = rig.caretaker()
    await caretaker.look()
    assert rig.ready == [True]
    assert rig.looks == 1
