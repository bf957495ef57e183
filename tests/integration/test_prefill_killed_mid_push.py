"""A prefill process that is killed while it pushes: its handoff ends, and everything comes back."""

import asyncio
from pathlib import Path
from typing import Any

from shared.types.handoff import HandoffKey
from tests.support.decode_server import decode_server, write_profile
from tests.support.prefill_peer import Prepared, prefill_peer
from tests.support.transfer_parts import DIRECT, NIXL_DEVICE, each_transport, registered
from tests.support.transfer_process import sending, transfer_process
from tests.support.waiting import until


@each_transport(without=("loopback",))
async def test_the_slot_of_a_killed_prefill_comes_back(
    name: str, prepared: Prepared, tiny_model_dir: Path, tmp_path: Path
) -> None:
    """`decode_server` checks in the end that pages, slots, leases and tasks are back."""
    settings: dict[str, Any] = {"require_transport": registered(name), "quarantine_s": 1.5}
    settings["kv_memory"] = "device" if name == NIXL_DEVICE else "host"
    profile = write_profile(tmp_path)
    async with decode_server(tiny_model_dir, profile, **settings) as server:
        table, identity = server.core.worker.table, server.core.identity
        async with prefill_peer(identity, server.address) as peer:
            grant = await peer.reserve(HandoffKey("killed", 1), prepared)
            assert grant.transports == (registered(name),)
            nbytes = prepared.plan.total_bytes
            pushes = sending(name, server.address, nbytes, grant=grant, model=identity)
            with transfer_process(*pushes) as child:
                assert child.stdout is not None
                await asyncio.to_thread(child.stdout.readline)
                child.kill()
                await until(lambda: not table.holds(HandoffKey("killed", 1)))
            if name in DIRECT:
                assert table.num_quarantined == 1, "nobody knows when its last write lands"
            await until(lambda: table.idle)
            again = await peer.reserve(HandoffKey("killed", 2), prepared)
            assert again.generation > grant.generation
            assert await peer.abort(HandoffKey("killed", 2))
