"""One NIXL agent behind a thread of its own, the only one that calls the library.

An agent registers its memory once: the landing slab on the decode side, a few chunks to send from
on the prefill side, and there the memory in which KV waits. It has no progress thread, which
would spin on a core: calls make progress.
"""

import asyncio
import mmap
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from shared.errors import HandoffError, TransportError
from shared.kv.checksum import crc32
from shared.kv.memory import HOST_SEGMENT, HostMemory, KvMemory, MemoryPart
from shared.kv.memory_reads import MemoryReads
from shared.transport.nixl_chunks import DirectWrite, Posted, Ready, write_failed
from shared.transport.nixl_hung import RECLAIM_SECONDS, HungWrites
from shared.transport.nixl_library import BACKEND, broken, load_nixl
from shared.transport.nixl_patience import FIRST_PAUSE_S, NoticePatience, WritePatience
from shared.transport.nixl_wire import fingerprint
from shared.types.kv_manifest import SegmentCheck
from shared.types.memory_kind import MemoryKind

T = TypeVar("T")

WRITE_SECONDS = 10.0
"""Longest time of one call's chunks; a peer that takes longer hangs, and holds up all others."""

POSTED_CHUNKS = 3
"""Chunks on their way at once; fewer than there are slots, so that others are staged meanwhile."""


class NixlAgent:
    """An agent with registered memory.

    Args:
        name: unique among all agents that can meet.
        memory: where peers write, or what chunks of the host are sent from; it must outlive the
            agent.
        slot_bytes: cut `memory` into slots of so many bytes to send from; 0 where nothing is sent.
        readable: more memory of the same kind, whose parts are sent without a copy.
        reads: told of the parts that writes may read; None: nobody asks.

    Raises:
        ConfigError: the library is not installed or does not work here; its code says which.
    """

    def __init__(
        self,
        name: str,
        memory: KvMemory,
        *,
        slot_bytes: int = 0,
        readable: Sequence[KvMemory] = (),
        reads: MemoryReads | None = None,
    ) -> None:
        self._library = load_nixl()
        self.fingerprint = fingerprint(
            library_version=self._library.version, memory=treatment(memory)
        )
        self.memory = memory
        self._readable = tuple(readable)
        self._slot_bytes = slot_bytes
        self._slots = deque(range(memory.nbytes // slot_bytes if slot_bytes else 0))
        self._hung = HungWrites(MemoryReads() if reads is None else reads)
        self._watching: asyncio.Task[None] | None = None
        on_host = memory.segment == HOST_SEGMENT
        self._patience = WritePatience(sleeps=not on_host)
        self._looking = NoticePatience(on_device=not on_host)
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

    @property
    def check(self) -> SegmentCheck:
        """Sums by which both ends of its writes verify segments."""
        return SegmentCheck.CRC32 if self.memory.kind is MemoryKind.HOST else SegmentCheck.SUM64

    def reads(self, part: MemoryPart) -> bool:
        """Whether a part can be sent without a copy."""
        return part.memory in self._readable

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
    ) -> float:
        """Writes chunks, each followed by its notice; on return nothing of it is under way.

        Args:
            peer: its name.
            writes: the chunks.
            may_go: called before each chunk, on the agent's thread; what it raises ends the rest.

        Returns:
            The seconds from the first post to the last completion.

        Raises:
            TransportError: a chunk did not arrive; the peer may be gone.
        """
        self._check_open()
        parts = [each.data for each in writes if isinstance(each.data, MemoryPart)]
        self._hung.begin(parts)

        def run() -> float:
            try:
                return self._write(peer, writes, may_go=may_go)
            finally:
                self._hung.end(parts)

        try:
            return await self._call(run)
        finally:
            if self._hung and (self._watching is None or self._watching.done()):
                self._watching = asyncio.create_task(self._watch_hung())

    async def notices(self, *, wait_s: float) -> list[bytes]:
        """Notices that arrived, oldest first; waits up to `wait_s` for one.

        Raises:
            TransportError: the library failed.
        """
        return await self._call(lambda: self._poll(wait_s))

    def hurry(self) -> None:
        """Somebody knows that a notice must be there: a call that waits for one looks at once."""
        self._looking.hurry()

    def is_settled(self, peer: str) -> bool:
        """Whether no write to this peer can be under way."""
        return not self._hung.names(peer)

    async def close(self) -> None:
        """Waits for running calls and frees the agent; twice is fine."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
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
        self.memory.enter_thread()
        module = self._library.module
        config = module.nixl_agent_config(backends=[BACKEND], enable_prog_thread=False)
        agent = module.nixl_agent(name, config)
        if BACKEND not in agent.backends:
            raise RuntimeError(f"its {BACKEND} plugin is missing")
        self._registered = [
            agent.register_memory(
                [(memory.address, memory.nbytes, memory.device_index, "")], mem_type=memory.segment
            )
            for memory in (self.memory, *self._readable)
        ]
        self._agent = agent

    def _stop(self) -> None:
        agent, self._agent = self._agent, None
        for each in self._registered:
            agent.deregister_memory(each)
        del agent
        self._hung.all_ended()

    def _forget(self, peer: str) -> None:
        try:
            self._agent.remove_remote_agent(peer)
        except self._library.failures:
            return  # it is gone already
        finally:
            self._reclaim()

    def _poll(self, wait_s: float) -> list[bytes]:
        for _ in self._looking.looks(wait_s):
            if found := self._agent.get_new_notifs():
                return [notice for notices in found.values() for notice in notices]
        return []

    def _write(
        self, peer: str, writes: Sequence[DirectWrite], *, may_go: Callable[[], None]
    ) -> float:
        self._reclaim()
        waiting, started = deque(writes), time.monotonic()
        ready: deque[Future[Ready]] = deque()
        posted: deque[Posted] = deque()
        failure: HandoffError | None = None
        first = None
        while waiting or ready or posted:
            self._prepare(waiting, ready)
            try:
                if ready and len(posted) < POSTED_CHUNKS:
                    posted.append(self._post(peer, ready.popleft().result(), may_go=may_go))
                    first = first or posted[-1].at
                elif posted:
                    self._finish(peer, posted.popleft(), until=started + WRITE_SECONDS)
                else:
                    raise TransportError(
                        "no chunk is left to send from: writes to peers that hang hold them all; "
                        "start a new attempt, and restart this worker if it recurs"
                    )
            except HandoffError as error:
                # What is posted is waited for all the same: on return nothing is under way.
                failure = failure or error
                waiting.clear()
                for each in ready:
                    if each.exception() is None:
                        self._free(each.result().slot)
                ready.clear()
        if failure is not None:
            raise failure
        return 0.0 if first is None else time.monotonic() - first

    def _prepare(self, waiting: deque[DirectWrite], ready: deque[Future[Ready]]) -> None:
        """Stages what there are slots for; registered memory needs none."""
        while waiting:
            write = waiting[0]
            if isinstance(write.data, MemoryPart) and self.check is SegmentCheck.CRC32:
                ready.append(self._stager.submit(self._sum, write, write.data))
            elif isinstance(write.data, MemoryPart):
                done: Future[Ready] = Future()
                done.set_result(Ready(write.data, None, write, write.notice(None)))
                ready.append(done)
            elif self._slots:
                ready.append(self._stager.submit(self._stage, write, self._slots.popleft()))
            else:
                return
            waiting.popleft()

    def _stage(self, write: DirectWrite, slot: int) -> Ready:
        """Copies and sums a chunk, on the stager's thread, while others are on their way."""
        assert isinstance(write.data, memoryview), "a part needs no copy"
        part = MemoryPart(self.memory, slot * self._slot_bytes, write.data.nbytes)
        try:
            self.memory.store(part.start, write.data)
        except RuntimeError as error:  # torch's, of a device; others may still be under way
            self._free(slot)
            raise TransportError(
                f"a chunk could not be copied to device memory to be sent ({error}): the device "
                "failed or is out of memory; start a new attempt"
            ) from error
        return Ready(part, slot, write, write.notice(crc32(write.data)))

    @staticmethod
    def _sum(write: DirectWrite, part: MemoryPart) -> Ready:
        """Sums a chunk of the host's where it is, on the stager's thread, while others go."""
        return Ready(part, None, write, write.notice(crc32(part.on_host())))

    def _post(self, peer: str, ready: Ready, *, may_go: Callable[[], None]) -> Posted:
        part, nbytes, write = ready.local, ready.local.nbytes, ready.write
        segment, local = part.memory.segment, (part.address, nbytes, part.memory.device_index)
        posted: Posted | None = None
        try:
            may_go()
            agent = self._agent
            handle = agent.initialize_xfer(
                "WRITE",
                agent.get_xfer_descs([local], mem_type=segment),
                agent.get_xfer_descs([(write.address, nbytes, write.device)], mem_type=segment),
                peer,
                ready.notice,
            )
            posted = Posted(handle, ready.local, ready.slot, nbytes, time.monotonic())
            agent.transfer(handle)
        except HandoffError:
            self._free(ready.slot)
            raise
        except self._library.failures as error:
            if posted is None:
                self._free(ready.slot)
            else:
                self._release(peer, posted)
            raise write_failed(error) from error
        return posted

    def _free(self, slot: int | None) -> None:
        if slot is not None:
            self._slots.append(slot)

    def _finish(self, peer: str, posted: Posted, *, until: float) -> None:
        polls = 0
        self._patience.rest(posted.nbytes, since=posted.at)
        try:
            while (state := self._agent.check_xfer_state(posted.handle)) == "PROC":
                polls += 1
                if time.monotonic() > until:
                    # It can be neither cancelled nor waited for, and keeps its slot.
                    self._hung.add(peer, posted)
                    raise TransportError(
                        f"chunks were not taken for {WRITE_SECONDS:g} s: the peer hangs; "
                        "start a new attempt on another worker"
                    )
                time.sleep(0 if polls < self._patience.spins else FIRST_PAUSE_S)
        except self._library.failures as error:
            self._release(peer, posted)
            raise write_failed(error) from error
        self._release(peer, posted)
        if state != "DONE":
            raise write_failed(state)
        self._patience.done()

    def _release(self, peer: str, posted: Posted) -> None:
        try:
            self._agent.release_xfer_handle(posted.handle)
        except self._library.failures:
            self._hung.add(peer, posted)  # the library says that it still runs
        else:
            self._free(posted.slot)

    def _reclaim(self) -> None:
        """Takes back what hung writes read that have ended since, mostly by `forget`."""
        self._hung.look(self._release, self._runs)

    def _runs(self, posted: Posted) -> bool:
        try:
            return bool(self._agent.check_xfer_state(posted.handle) == "PROC")
        except self._library.failures:
            return False

    async def _watch_hung(self) -> None:
        """Writes that hang may end while nobody writes."""
        while self._hung:
            await asyncio.sleep(RECLAIM_SECONDS)
            await self._call(self._reclaim)

    def _check_open(self) -> None:
        if self._agent is None:
            raise TransportError("the NIXL transport is closed here: this worker shuts down")

    async def _call(self, function: Callable[[], T]) -> T:
        self._check_open()
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, function)
        except self._library.failures as error:
            raise TransportError(
                f"the NIXL library failed ({error}): the peer's data do not fit or it is gone; "
                "start a new attempt"
            ) from error


def probe_agent(memory: KvMemory | None = None) -> str:
    """Starts an agent, registers a memory and frees both; says what was found.

    Args:
        memory: what to register; None: a page of the host's.

    Raises:
        ConfigError: the library is not installed or does not work here, or not on this memory;
            its code says which.
    """
    agent = NixlAgent("probe", HostMemory(mmap.PAGESIZE) if memory is None else memory)
    with ThreadPoolExecutor(max_workers=1) as apart:  # the caller's thread may run a loop
        apart.submit(asyncio.run, agent.close()).result()
    return f"{agent.about}, {agent.memory.segment}, wire fingerprint {agent.fingerprint[:12]}"


def treatment(memory: KvMemory) -> str:
    """What a memory is, for the fingerprint: ends that treat bytes unlike cannot be joined."""
    on_host = memory.kind is MemoryKind.HOST
    return memory.segment if on_host else f"{memory.segment}, summed where it is"
