"""One NIXL agent behind a thread of its own, the only one that calls the library.

An agent registers its memory once: the landing slab on the decode side, a few chunks to send from
on the prefill side. It has no progress thread, which would spin on a core: calls make progress.
"""

import asyncio
import mmap
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from shared.errors import HandoffError, TransportError
from shared.kv.checksum import crc32
from shared.transport.nixl_library import BACKEND, broken, load_nixl
from shared.transport.nixl_wire import fingerprint

T = TypeVar("T")

MEMORY = "DRAM"
"""Kind of memory that this version registers: the host's."""

WRITE_SECONDS = 10.0
"""Longest time of one call's chunks; a peer that takes longer hangs, and holds up all others."""

POSTED_CHUNKS = 3
"""Chunks on their way at once; fewer than there are slots, so that others are staged meanwhile."""

_FIRST_PAUSE_S = 0.0001
_LONGEST_PAUSE_S = 0.0005
_SPIN_POLLS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectWrite:
    """One chunk to be written into a peer's memory."""

    address: int
    """Where, in the peer's address space."""
    data: memoryview
    """The chunk, at most as long as a staging slot."""
    notice: Callable[[int], bytes]
    """Makes the notice that follows the chunk, from its checksum."""


@dataclass(frozen=True, slots=True)
class _Staged:
    slot: int
    length: int
    address: int
    notice: bytes


@dataclass(frozen=True, slots=True)
class _Posted:
    handle: Any
    slot: int


class NixlAgent:
    """An agent with one registered buffer.

    Args:
        name: unique among all agents that can meet.
        memory: the buffer; it must outlive the agent.
        slot_bytes: cut the buffer into slots of so many bytes to send from; 0 where nothing is
            sent.

    Raises:
        ConfigError: the library is not installed or does not work here; its code says which.
    """

    def __init__(self, name: str, memory: mmap.mmap, *, slot_bytes: int = 0) -> None:
        self._library = load_nixl()
        self.fingerprint = fingerprint(library_version=self._library.version, memory=MEMORY)
        self._memory: npt.NDArray[np.uint8] = np.frombuffer(memory, dtype=np.uint8)
        self.address = int(self._memory.ctypes.data)
        self._slot_bytes = slot_bytes
        self._slots = deque(range(self._memory.nbytes // slot_bytes if slot_bytes else 0))
        self._hung: list[tuple[str, _Posted]] = []
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="nixl")
        self._stager = ThreadPoolExecutor(max_workers=1, thread_name_prefix="nixl-stage")
        self._agent: Any = None
        try:
            self._thread.submit(self._start, name).result()
        except self._library.failures as error:
            self._end_threads()
            raise broken(error) from error

    @property
    def about(self) -> str:
        """Library version and backend."""
        return f"NIXL {self._library.version} over {BACKEND}"

    async def metadata(self) -> bytes:
        """What a peer needs in order to write here."""
        return await self._call(lambda: bytes(self._agent.get_agent_metadata()))

    async def connect(self, metadata: bytes) -> str:
        """Learns of a peer; returns its name.

        Raises:
            TransportError: the metadata cannot be used.
        """
        return await self._call(lambda: self._agent.add_remote_agent(metadata).decode())

    async def forget(self, peer: str) -> None:
        """Drops the connection to a peer; one that is not known any more is fine."""
        await self._call(lambda: self._forget(peer))

    async def write(
        self, peer: str, writes: Sequence[DirectWrite], *, may_go: Callable[[], None]
    ) -> None:
        """Writes chunks, each followed by its notice; on return nothing of it is under way.

        Args:
            peer: its name.
            writes: the chunks.
            may_go: called before each chunk, on the agent's thread; what it raises ends the rest.

        Raises:
            TransportError: a chunk did not arrive; the peer may be gone.
        """
        await self._call(lambda: self._write(peer, writes, may_go=may_go))

    async def notices(self, *, wait_s: float) -> list[bytes]:
        """Notices that arrived, oldest first; waits up to `wait_s` for one.

        Raises:
            TransportError: the library failed.
        """
        return await self._call(lambda: self._poll(wait_s))

    def is_settled(self, peer: str) -> bool:
        """Whether no write to this peer can be under way."""
        return all(name != peer for name, _ in self._hung)

    async def close(self) -> None:
        """Waits for running calls and frees the agent; twice is fine."""
        if self._agent is not None:
            try:
                await self._call(self._stop)
            finally:
                self._end_threads()

    def _end_threads(self) -> None:
        self._thread.shutdown()
        self._stager.shutdown()

    # --- on the agent's thread ----------------------------------------------------------------

    def _start(self, name: str) -> None:
        module = self._library.module
        config = module.nixl_agent_config(backends=[BACKEND], enable_prog_thread=False)
        agent = module.nixl_agent(name, config)
        if BACKEND not in agent.backends:
            raise RuntimeError(f"its {BACKEND} plugin is missing")
        region = [(self.address, self._memory.nbytes, 0, "")]
        self._registered = agent.register_memory(region, mem_type=MEMORY)
        self._agent = agent

    def _stop(self) -> None:
        agent, self._agent = self._agent, None
        agent.deregister_memory(self._registered)

    def _forget(self, peer: str) -> None:
        try:
            self._agent.remove_remote_agent(peer)
        except self._library.failures:
            return  # it is gone already

    def _poll(self, wait_s: float) -> list[bytes]:
        until, pause = time.monotonic() + wait_s, _FIRST_PAUSE_S
        while True:
            found = self._agent.get_new_notifs()
            if found or time.monotonic() >= until:
                return [notice for notices in found.values() for notice in notices]
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _write(
        self, peer: str, writes: Sequence[DirectWrite], *, may_go: Callable[[], None]
    ) -> None:
        self._reclaim()
        waiting, until = deque(writes), time.monotonic() + WRITE_SECONDS
        staged: deque[Future[_Staged]] = deque()
        posted: deque[_Posted] = deque()
        failure: HandoffError | None = None
        while waiting or staged or posted:
            while waiting and self._slots:
                slot = self._slots.popleft()
                staged.append(self._stager.submit(self._stage, waiting.popleft(), slot))
            try:
                if staged and len(posted) < POSTED_CHUNKS:
                    posted.append(self._post(peer, staged.popleft().result(), may_go=may_go))
                elif posted:
                    self._finish(peer, posted.popleft(), until=until)
                else:
                    raise TransportError(
                        "no chunk is left to send from: writes to peers that hang hold them all; "
                        "start a new attempt, and restart this worker if it recurs"
                    )
            except HandoffError as error:
                # What is posted is waited for all the same: on return nothing is under way.
                failure = failure or error
                waiting.clear()
                self._slots.extend(each.result().slot for each in staged)
                staged.clear()
        if failure is not None:
            raise failure

    def _stage(self, write: DirectWrite, slot: int) -> _Staged:
        """Copies and sums a chunk, on the stager's thread, while others are on their way."""
        start = slot * self._slot_bytes
        staged = self._memory[start : start + write.data.nbytes]
        staged[:] = np.frombuffer(write.data, dtype=np.uint8)
        return _Staged(slot, staged.nbytes, write.address, write.notice(crc32(staged.data)))

    def _post(self, peer: str, staged: _Staged, *, may_go: Callable[[], None]) -> _Posted:
        local = self.address + staged.slot * self._slot_bytes
        try:
            may_go()
            agent = self._agent
            handle = agent.initialize_xfer(
                "WRITE",
                agent.get_xfer_descs([(local, staged.length, 0)], mem_type=MEMORY),
                agent.get_xfer_descs([(staged.address, staged.length, 0)], mem_type=MEMORY),
                peer,
                staged.notice,
            )
            agent.transfer(handle)
        except HandoffError:
            self._slots.append(staged.slot)
            raise
        except self._library.failures as error:
            self._slots.append(staged.slot)
            raise _write_failed(error) from error
        return _Posted(handle, staged.slot)

    def _finish(self, peer: str, posted: _Posted, *, until: float) -> None:
        polls = 0
        try:
            while (state := self._agent.check_xfer_state(posted.handle)) == "PROC":
                polls += 1
                if time.monotonic() > until:
                    # It can be neither cancelled nor waited for, and keeps its slot.
                    self._hung.append((peer, posted))
                    raise TransportError(
                        f"chunks were not taken for {WRITE_SECONDS:g} s: the peer hangs; "
                        "start a new attempt on another worker"
                    )
                time.sleep(0 if polls < _SPIN_POLLS else _FIRST_PAUSE_S)
        except self._library.failures as error:
            self._release(peer, posted)
            raise _write_failed(error) from error
        self._release(peer, posted)
        if state != "DONE":
            raise _write_failed(state)

    def _release(self, peer: str, posted: _Posted) -> None:
        try:
            self._agent.release_xfer_handle(posted.handle)
        except self._library.failures:
            self._hung.append((peer, posted))  # the library says that it still runs
        else:
            self._slots.append(posted.slot)

    def _reclaim(self) -> None:
        """Takes back the slots of hung writes that have ended since, mostly by `forget`."""
        hung, self._hung = self._hung, []
        for peer, posted in hung:
            try:
                running = self._agent.check_xfer_state(posted.handle) == "PROC"
            except self._library.failures:
                running = False
            if running:
                self._hung.append((peer, posted))
            else:
                self._release(peer, posted)

    async def _call(self, function: Callable[[], T]) -> T:
        if self._agent is None:
            raise TransportError("the NIXL transport is closed here: this worker shuts down")
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, function)
        except self._library.failures as error:
            raise TransportError(
                f"the NIXL library failed ({error}): the peer's data do not fit or it is gone; "
                "start a new attempt"
            ) from error


def probe_agent() -> str:
    """Starts an agent and frees it; says what was found.

    Raises:
        ConfigError: the library is not installed or does not work here; its code says which.
    """
    agent = NixlAgent("probe", mmap.mmap(-1, mmap.PAGESIZE))
    asyncio.run(agent.close())
    return f"{agent.about}, {MEMORY}, wire fingerprint {agent.fingerprint[:12]}"


def _write_failed(error: object) -> HandoffError:
    return TransportError(
        f"a chunk could not be written into the peer's memory ({error}): its process died or "
        "cannot be reached; start a new attempt, on another worker if it recurs"
    )
