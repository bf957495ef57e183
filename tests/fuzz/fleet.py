"""The roles under fire: where they are, what they hold, and what must come back to its start."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import grpc.aio
import httpx
import psutil

from deploy.launch import ROLE_MODULES
from protos.tandem.v1 import control_pb2, control_pb2_grpc
from shared.rpc.channel import open_channel
from shared.types.model_identity import ModelIdentity
from shared.wire.identity import identity_from_pb
from tests.support.processes import UpProcess, running_up

SETTLE_S = 120.0
"""Longest wait for what ends with a lease; a bound for a test that would hang, not a promise."""

_CONTEXT_LINES = 7

_OF_THE_LIBRARY = (
    "Invalid encoding on b",
    "Unexpected [UnicodeDecodeError] raised by servicer method",
    "Failed sending error status from server",
    "grpc._cython.cygrpc.ExecuteBatchError",
)
"""What grpc tells as errors and nobody can help: a path that is no UTF-8, and an answer or a status
whose caller has left at that moment."""

LEASES = {
    "TANDEM_DECODE__LEASE_S": "2",
    "TANDEM_DECODE__ADOPT_LEASE_S": "2",
    "TANDEM_DECODE__QUARANTINE_S": "2",
    "TANDEM_DECODE__REMEMBER_S": "8",
    "TANDEM_DECODE__COMMIT_WAIT_S": "1",
    "TANDEM_PREFILL__SEALED_LEASE_S": "2",
    "TANDEM_PREFILL__RESERVE_WAIT_S": "2",
}
"""Short ones: a campaign looks several times whether everything that was left behind has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """host:port of every port that is fuzzed."""

    rest: str
    gateway: str
    prefill: str
    decode: str

    def rpc(self) -> dict[str, str]:
        """gRPC ports by role."""
        return {"gateway": self.gateway, "prefill": self.prefill, "decode": self.decode}


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """One role at one moment."""

    pid: int
    files: int
    """Open file descriptors."""
    threads: int
    rss: int
    """Resident bytes."""


class Fleet(Protocol):
    """Running roles."""

    @property
    def addresses(self) -> Addresses:
        """Where they are."""

    def vitals(self) -> dict[str, Vitals]:
        """Each role's process."""

    def complaints(self) -> list[str]:
        """Log lines that tell of a defect."""


class UpFleet:
    """The roles of a running `tandem up`, which must log JSON."""

    def __init__(self, up: UpProcess) -> None:
        self._up = up
        self.addresses = Addresses(
            rest=up.url.removeprefix("http://"),
            gateway=up.grpc,
            prefill=up.worker("prefill-0"),
            decode=up.worker("decode-0"),
        )

    def vitals(self) -> dict[str, Vitals]:
        """Each role's process."""
        return {role: vitals_of(self._up.pid(module)) for role, module in ROLE_MODULES.items()}

    def log(self) -> str:
        """All that the roles said."""
        return self._up.log()

    def complaints(self) -> list[str]:
        """Log lines that tell of a defect."""
        return complaints_in(list(self._up.err))


@contextmanager
def running_fleet(model_dir: Path) -> Iterator[UpFleet]:
    """`tandem up` with short leases."""
    arguments = ("--model", str(model_dir), "--log-format", "json")
    with running_up(*arguments, environment=LEASES) as up:
        yield UpFleet(up)


def vitals_of(pid: int) -> Vitals:
    """A process as the operating system sees it."""
    process = psutil.Process(pid)
    with process.oneshot():
        return Vitals(
            pid=pid,
            files=process.num_fds(),
            threads=process.num_threads(),
            rss=process.memory_info().rss,
        )


def complaints_in(lines: Sequence[str]) -> list[str]:
    """The lines of a log that malformed input must never bring about, with what follows them."""
    found = []
    for index, line in enumerate(lines):
        if not _is_complaint(line):
            continue
        context = "\n".join(lines[index : index + _CONTEXT_LINES])
        told = context if '"event"' not in line else line  # a stack outside of our logs goes on
        if not any(known in told for known in _OF_THE_LIBRARY):
            found.append(context)
    return found


def _is_complaint(line: str) -> bool:
    if "Traceback" in line:
        return True
    start = line.find("{")
    try:
        entry = json.loads(line[start:]) if start >= 0 else {}
    except ValueError:
        entry = {}
    if isinstance(entry, dict) and "level" in entry:
        return entry["level"] in {"error", "critical"}
    return "Fatal" in line or "Exception ignored" in line


class Patient:
    """Asks the roles how they are.

    Args:
        addresses: theirs.
    """

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses

    async def identity(self) -> ModelIdentity:
        """Whose KV the workers hold."""
        async with open_channel(self._addresses.decode) as channel:
            stub = control_pb2_grpc.ControlServiceStub(channel)
            info = await stub.GetInfo(control_pb2.GetInfoRequest())
        return identity_from_pb(info.model)

    async def held(self) -> dict[str, int]:
        """What is in flight or held anywhere; all zeros when idle."""
        async with httpx.AsyncClient(base_url=f"http://{self._addresses.rest}") as http:
            load = (await http.get("/load")).json()
        prefill = await self._load(self._addresses.prefill)
        decode = await self._load(self._addresses.decode)
        return {
            "gateway requests": load["server_load"],
            "gateway queue": load["queued_requests"] + load["queued_prompt_tokens"],
            "prefill queue": prefill.queued_requests + prefill.queued_tokens,
            "prefill running": prefill.running_requests,
            "prefill holds": prefill.held_handoffs,
            "decode rows": decode.running_requests + decode.queued_requests,
            "decode handoffs": decode.held_handoffs,
            "decode pages": decode.total_pages - decode.free_pages,
            "decode slab bytes": decode.total_slab_bytes - decode.free_slab_bytes,
        }

    async def idle(self) -> dict[str, int]:
        """Waits for all zeros; what is still held when that does not come."""
        until = time.monotonic() + SETTLE_S
        while any((held := await self.held()).values()):
            if time.monotonic() > until:
                break
            await asyncio.sleep(0.2)
        return {name: count for name, count in held.items() if count}

    async def canary(self) -> str:
        """The greedy answer to one fixed prompt; the status when there is none."""
        body = {
            "model": "tiny", "prompt": "The quick brown fox. " * 6, "max_tokens": 8,
            "temperature": 0, "ignore_eos": True,
        }  # fmt: skip
        async with httpx.AsyncClient(base_url=f"http://{self._addresses.rest}", timeout=60) as http:
            ready = await http.get("/health/ready")
            answer = await http.post("/v1/completions", json=body)
        if (ready.status_code, answer.status_code) != (200, 200):
            return f"ready {ready.status_code}, answer {answer.status_code}: {answer.text[:300]}"
        text: str = answer.json()["choices"][0]["text"]
        return text

    async def _load(self, address: str) -> control_pb2.GetLoadResponse:
        async with open_channel(address) as channel:
            stub = control_pb2_grpc.ControlServiceStub(channel)
            return await stub.GetLoad(control_pb2.GetLoadRequest(), timeout=30)


async def settled(holds: Callable[[], bool]) -> bool:
    """Waits for something that no event tells of; False when it does not come."""
    until = time.monotonic() + SETTLE_S
    while not holds():
        if time.monotonic() > until:
            return False
        await asyncio.sleep(0.1)
    return True


def channels(addresses: Addresses) -> dict[str, grpc.aio.Channel]:
    """Channels to every role, without our own interceptors."""
    options = [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_metadata_size", 2**20),
        ("grpc.absolute_max_metadata_size", 2**20),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    return {
        role: grpc.aio.insecure_channel(address, options=options)
        for role, address in addresses.rpc().items()
    }
