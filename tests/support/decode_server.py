"""A whole decode server in this process, and the state it must return to when idle."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from decode_service.app import DecodeServer
from decode_service.config import DecodeConfig
from deploy.decode_worker import prefill_settings
from prefill_service.config import PrefillConfig
from prefill_service.engine.engine import PrefillEngine
from prefill_service.local import LocalPrefill
from shared.model.transformer import Transformer
from shared.telemetry.spans import SpanSource
from shared.types.methods import SparsityParams
from shared.types.sampling import SamplingParams
from tests.support.decode_rows import make_cache, make_runner, place
from tests.support.prefill_peer import GREEDY, PrefillPeer, Prepared, prefill_peer
from tests.support.waiting import until

SPARSITY = SparsityParams(full_layers=(0, 2), page_budget=4, recency_pages=1)

PROFILE = """
source = "for tests"
[pruning]
pruning_layer = { value = 3, source = "test" }
deferred_layers = { value = 2, source = "test" }
aggregation_window = { value = 2, source = "test" }
observation_window = { value = 4, source = "test" }
[sparsity]
full_layers = { value = [0, 2], source = "test" }
page_budget = { value = 4, source = "test" }
recency_pages = { value = 1, source = "test" }
"""


def write_profile(folder: Path) -> Path:
    """The profile of the servers in these tests."""
    path = folder / "tiny-test.toml"
    path.write_text(PROFILE, encoding="utf-8")
    return path


@asynccontextmanager
async def decode_server(
    model_dir: Path, profile: Path, *, spans: SpanSource | None = None, **settings: Any
) -> AsyncIterator[DecodeServer]:
    """A running server; afterwards it must be idle, with nothing held and no task left.

    With `local_prefill_tokens` it has a prefill engine beside it, in chunks of 48 tokens.
    """
    before = asyncio.all_tasks()
    values: dict[str, Any] = {
        "port": 0,
        "admin_port": 0,
        "model": str(model_dir),
        "profile": str(profile),
        "pages_front": 64,
        "pages_rest": 64,
        "slab_bytes": 1 << 20,
        "max_batch": 8,
        "poison": True,
    }
    config = DecodeConfig(**(values | settings))
    server = DecodeServer(config, spans=spans, local=local_prefill(config))
    try:
        await server.start()
        yield server
        await until(lambda: server.core.worker.table.idle)
        assert_idle(server)
    finally:
        await server.stop()
    await until(lambda: not asyncio.all_tasks() - before - {asyncio.current_task()})


def local_prefill(config: DecodeConfig) -> LocalPrefill | None:
    """The prefill engine that the settings of a decode worker ask for."""
    if not config.local_prefill_tokens:
        return None
    return LocalPrefill(prefill_settings(PrefillConfig(chunk_tokens=48), worker=config))


def local_engine(server: DecodeServer) -> PrefillEngine:
    """That of a running server."""
    assert isinstance(server._local, LocalPrefill)
    return server._local.parts.engine


async def local_idle(server: DecodeServer) -> None:
    """Waits until a prefill engine beside, if there is one, has nothing left of any prompt."""
    if server._local is None:
        return
    engine = local_engine(server)
    await until(lambda: engine.load().running_requests == engine.load().held_handoffs == 0)
    load = engine.load()
    assert load.queued_requests == load.queued_tokens == load.active_bytes == load.held_bytes == 0
    assert not engine._tasks


def assert_idle(server: DecodeServer) -> None:
    """Pages, slots, leases and generations are back to where they began."""
    core = server.core
    core.worker.table.check_integrity()
    core.memory.cache.check_idle()
    assert core.worker.table.idle
    assert core.memory.slab.num_leases == 0
    assert core.memory.slab.free_bytes == core.memory.slab.total_bytes
    assert core.worker.num_generations == 0
    assert core.worker.intake.num_tasks == 0
    load = server.present_load()
    assert load.free_pages == load.total_pages


def direct_tokens(
    model: Transformer,
    prepared: Prepared,
    *,
    num_tokens: int,
    sparsity: SparsityParams | None = SPARSITY,
    sampling: SamplingParams = GREEDY,
) -> list[int]:
    """What the runner generates after the first token when it is called without a server."""
    cache = make_cache(model)
    row = place(
        model,
        cache,
        prepared.prompt,
        first_token=prepared.first_token,
        sparsity=sparsity,
        sampling=sampling,
    )
    row.prompt_ids = tuple(prepared.ids)
    runner = make_runner(model, cache)
    return [runner.step([row])[0].token_id for _ in range(num_tokens)]


def holder() -> tuple[threading.Event, Callable[[], bool]]:
    """Work for `between_steps` that keeps the engine until the event is set."""
    event = threading.Event()
    return event, lambda: event.wait(timeout=10)


class ServerPair(Protocol):
    """Starts a server with the given settings, and a peer."""

    def __call__(
        self, **settings: Any
    ) -> AbstractAsyncContextManager[tuple[DecodeServer, PrefillPeer]]: ...


def pair_starter(model_dir: Path, profile: Path) -> ServerPair:
    """Binds the folder and the profile."""

    @asynccontextmanager
    async def start(**settings: Any) -> AsyncIterator[tuple[DecodeServer, PrefillPeer]]:
        async with (
            decode_server(model_dir, profile, **settings) as server,
            prefill_peer(server.core.identity, server.address) as peer,
        ):
            yield server, peer

    return start
