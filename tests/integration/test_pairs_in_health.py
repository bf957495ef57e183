"""The real pair when a transport cannot be used: who serves, why, how fast, and who says so."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.transport.ranking import LANE_FAILED, PID_NAMESPACE
from shared.transport.topology import read_topology
from shared.types.topology import Topology
from tests.support.decode_server import write_profile
from tests.support.faulty_transport import Fault, FaultyTransport
from tests.support.full_stack import Stack, running_stack
from tests.support.transfer_parts import needs_nixl
from tests.support.waiting import until

pytestmark = needs_nixl

BOTH = {"transports": ("nixl", "grpc")}


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both workers believe to be in containers of their own on one machine."""
    for module, namespace in (("prefill_service.parts", "1"), ("decode_service.app", "2")):

        def elsewhere(device: str, namespace: str = namespace) -> Topology:
            return replace(read_topology(device), host="h", pid_namespace=namespace)

        monkeypatch.setattr(f"{module}.read_topology", elsewhere)


async def ask(stack: Stack) -> httpx.Response:
    body = {"prompt": "fox " * 40, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    return await stack.http.post("/v1/completions", json=body)


async def worker_health(stack: Stack) -> list[Mapping[str, Any]]:
    async with httpx.AsyncClient() as http:
        answer = await http.get(f"http://{stack.prefill.app.admin_address}/health")
    pairs: list[Mapping[str, Any]] = answer.json()["pairs"]
    return pairs


async def test_workers_without_shared_visibility_tell_the_fallback_its_reason_and_its_speed(
    tiny_model_dir: Path, tmp_path: Path, apart: None
) -> None:
    profile = write_profile(tmp_path)
    async with running_stack(tiny_model_dir, profile, prefill=BOTH, decode=BOTH) as stack:
        answer = (await ask(stack)).raise_for_status().json()
        assert answer["tandem"]["transport"] == "grpc"
        pairs = {pair["transport"]: pair for pair in await worker_health(stack)}
        assert set(pairs) == {"nixl", "grpc"}
        assert pairs["nixl"]["rejected"] == PID_NAMESPACE
        assert "pid namespaces (1 here, 2 there)" in pairs["nixl"]["reason"]
        assert pairs["grpc"]["rejected"] == ""
        assert pairs["grpc"]["gbps"] > 0
        assert {pair["worker_id"] for pair in pairs.values()} == {stack.decode.worker_id}

        await _until_told(stack, list(pairs.values()))  # the gateway asks every tenth of a second
        workers = (await stack.http.get("/health")).json()["workers"]
        places = {worker["role"]: worker["place"] for worker in workers}
        assert (places["prefill"]["pid_namespace"], places["decode"]["pid_namespace"]) == ("1", "2")
        assert all(place["gpus"] or place["gpu_note"] for place in places.values())
        stack.prefill.app._refresh()
        value = stack.prefill.app.registry.get_sample_value
        labels = {"transport": "nixl", "reason": PID_NAMESPACE}
        assert value("tandem_transport_fallbacks_total", labels) == 1
        assert value("tandem_transport_rejected_pairs", labels) == 1
        assert value("tandem_transport_canary_gbps_count", {"transport": "grpc"}) == 1


async def test_a_required_transport_that_a_pair_cannot_use_fails_the_request_with_its_reason(
    tiny_model_dir: Path, tmp_path: Path, apart: None
) -> None:
    profile = write_profile(tmp_path)
    ways = {"require_transport": "nixl"}
    async with running_stack(tiny_model_dir, profile, prefill=ways, decode=BOTH) as stack:
        answer = await ask(stack)
        assert answer.status_code >= 500
        error = answer.json()["error"]
        assert "nixl: pid_namespace" in error["message"]
        assert error["code"] == "no_transport"
        assert stack.decode.address not in answer.text
        await stack.prefill.expect_idle()
        assert stack.decode.core.worker.table.idle


async def test_a_lane_that_dies_is_followed_by_the_next_transport(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    profile = write_profile(tmp_path)
    async with running_stack(tiny_model_dir, profile, prefill=BOTH, decode=BOTH) as stack:
        parts = stack.prefill.app._parts
        assert parts is not None
        opened: dict[str, Any] = parts.lanes.chosen.opened
        nixl = opened["nixl"] = FaultyTransport(opened["nixl"], "nixl")
        assert (await ask(stack)).json()["tandem"]["transport"] == "nixl"
        nixl.fault = Fault.BREAK
        broken = await ask(stack)
        assert broken.json()["tandem"]["transport"] == "grpc"  # the gateway's second attempt
        states = {state.transport: state for state in parts.lanes.pairs.states()}
        assert states["nixl"].rejected == LANE_FAILED
        assert states["nixl"].gbps > 0
        assert (await ask(stack)).json()["tandem"]["transport"] == "grpc"
        table = stack.decode.core.worker.table
        await until(lambda: table.idle)
        await stack.prefill.expect_idle()
        table.check_integrity()


async def _until_told(stack: Stack, expected: list[Mapping[str, Any]]) -> None:
    def told() -> list[object]:
        workers = stack.gateway.workers.describe()
        return [worker["pairs"] for worker in workers if worker["role"] == "prefill"]

    await until(lambda: told() == [expected])
