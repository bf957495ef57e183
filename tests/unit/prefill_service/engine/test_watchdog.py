"""A watchdog's word changes with the engine's, once each time."""

from prefill_service.engine.watchdog import Watchdog


async def test_stall_recovery_and_the_end() -> None:
    seconds = [0.0]
    heard: list[bool] = []
    gave_up: list[float] = []

    async def changed(healthy: bool) -> None:
        heard.append(healthy)

    dog = Watchdog(
        lambda: seconds[0],
        stall_s=10,
        exit_s=60,
        on_change=changed,
        give_up=lambda: gave_up.append(seconds[0]),
    )
    for seconds[0] in (0.0, 9.9, 10.0, 30.0, 0.0, 1.0, 61.0):
        await dog.look()
    assert heard == [False, True, False]
    assert gave_up == [61.0]


async def test_zero_never_gives_up() -> None:
    async def changed(_healthy: bool) -> None:
        pass

    def give_up() -> None:
        raise AssertionError("it must wait for ever")

    dog = Watchdog(lambda: 1e9, stall_s=1, exit_s=0, on_change=changed, give_up=give_up)
    await dog.look()
    assert not dog.healthy
