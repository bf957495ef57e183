"""One try to get a KV cache to one decode worker: reserve, push, commit, or abort."""

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

import structlog

from prefill_service.engine.commit_ahead import CommitAhead, Foretold
from prefill_service.engine.grants import GrantHistory
from prefill_service.engine.handoff_notes import HandoffNotes, NotedSender
from prefill_service.engine.job import Target
from prefill_service.engine.prompt_slab import PromptSlab
from prefill_service.engine.range_writes import RangeWrites
from shared.errors import (
    HandoffError,
    InvalidRequestError,
    ManifestError,
    TandemError,
    TransportError,
)
from shared.transport.base import Grant, KvSender, TransferStats
from shared.transport.paired import PairedTransports
from shared.types.handoff import HandoffKey, HandoffState, HandoffStateMachine
from shared.types.kv_manifest import KvManifest, PruningSummary, SegmentCheck

T = TypeVar("T")

MOST_LEFT_BYTES = 64 << 20
"""Bytes of a last write that a commit may run beside: done in time on any link worth a handoff,
where the worker waits some seconds for the end of a push."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveTerms:
    """What room a handoff needs."""

    prompt_tokens: int
    """KV slots of every whole layer."""
    kept_tokens: int
    """KV slots of every pruned layer."""
    whole_layers: int
    """Layers that keep the whole prompt."""
    slab_bytes: int
    """Bytes of the landing slab."""
    max_new_tokens: int
    """Tokens that each answer will have at most."""
    num_branches: int = 1
    """Answers that share the prompt."""
    pruning: PruningSummary | None = None
    """What the prompt will be pruned with, so that layers can be taken as they land."""


@dataclass(frozen=True, slots=True)
class Busy:
    """A decode worker has no room: why, and when to ask again."""

    retry_after_s: float
    reason: str


class DecodePeer(Protocol):
    """Calls to decode workers; errors are `TandemError`s."""

    async def reserve(
        self, target: Target, *, key: HandoffKey, terms: ReserveTerms
    ) -> Grant | Busy:
        """Asks for room."""
        ...

    async def commit(
        self,
        target: Target,
        *,
        manifest: KvManifest,
        grant: Grant,
        prompt_token_ids: Sequence[int],
    ) -> None:
        """Hands a landed cache over; raises when it is refused."""
        ...

    async def abort(self, target: Target, *, key: HandoffKey, reason: str) -> bool:
        """Ends a handoff; True when no write can be outstanding."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Ways to the decode side."""

    peer: DecodePeer
    """Control calls."""
    pairs: PairedTransports
    """Data lanes, and which of them to use for whom."""
    grants: GrantHistory = field(default_factory=GrantHistory)
    """What each decode worker answered last when it was asked for room."""


class Delivery:
    """One try; `machine` says how far it got, and `abort` ends it from any state.

    Args:
        key: the handoff.
        target: the decode worker.
        links: ways to it.
        notes: of a traced prompt, of when its bytes went.
    """

    def __init__(
        self,
        *,
        key: HandoffKey,
        target: Target,
        links: Links,
        notes: HandoffNotes | None = None,
    ) -> None:
        self.target = target
        self.transport = ""
        self.check = SegmentCheck.CRC32
        self.machine = HandoffStateMachine(key)
        self._links = links
        self._notes = notes
        self._grant: Grant | None = None
        self._sender: KvSender | None = None
        self._sealing: asyncio.Task[TransferStats] | None = None
        self._ahead: CommitAhead | None = None
        self._asked = False

    @property
    def granted(self) -> bool:
        """Whether it has a landing slab."""
        return self._grant is not None

    @property
    def commits_ahead(self) -> bool:
        """Whether its commit is under way since before the bytes were all there."""
        return self._ahead is not None

    async def reserve(self, terms: ReserveTerms) -> Busy | None:
        """Asks for room; None is a grant.

        Raises:
            TandemError: the worker refuses the handoff or cannot be reached.
        """
        self._asked = True
        try:
            answer = await self._links.peer.reserve(self.target, key=self.machine.key, terms=terms)
        except (InvalidRequestError, ManifestError):
            self._asked = False
            raise
        if isinstance(answer, Busy):
            self._asked = False
            return answer
        self._grant = answer
        self.machine.advance(HandoffState.RESERVED)
        return None

    async def push(self, slab: PromptSlab, *, foretold: Foretold | None = None) -> None:
        """Sends every range of the slab as it becomes final, and begins to seal.

        Between the memories of two devices a last range of a layer or two may still be on its way
        on return: it takes less time than a commit, and far less than one waits for it.

        Args:
            slab: the bytes.
            foretold: what a commit may say ahead, where the way to the worker allows that.

        Raises:
            HandoffError: no transport may be used, or the bytes did not arrive.
            TandemError: the worker refused what was foretold.
        """
        grant = self._granted()
        transport = await self._links.pairs.choose(
            worker_id=self.target.worker_id, address=self.target.address, grant=grant
        )
        self.transport, self.check = transport.name, transport.check
        sender = transport.sender()
        if self._notes is not None:
            sender = NotedSender(sender, self._notes)
        self._sender = sender
        with self._blaming_transport():
            await sender.open(address=self.target.address, grant=grant)
        self.machine.advance(HandoffState.STREAMING)
        written = RangeWrites(lambda o, n: self._in_lease(sender.write(o, slab.view(o, n)), grant))
        writing = self._write(written, slab)
        if foretold is None or not sender.takes_sums:
            await writing
            self._sealing = asyncio.create_task(self._seal(written, sender, grant))
            return
        self._ahead = CommitAhead(self._commit_ahead(foretold, grant))
        await self._ahead.unless_refused(writing)
        self._sealing = asyncio.create_task(self._seal_ahead(written, sender, foretold))

    async def _write(self, written: RangeWrites, slab: PromptSlab) -> None:
        left = MOST_LEFT_BYTES if self.check is SegmentCheck.SUM64 else 0
        with self._blaming_transport():
            await written.follow(slab.ranges(), most_left=left)

    async def _seal(self, written: RangeWrites, sender: KvSender, grant: Grant) -> TransferStats:
        await written.end()
        return await self._in_lease(sender.seal(), grant)

    async def _seal_ahead(
        self, written: RangeWrites, sender: KvSender, foretold: Foretold
    ) -> TransferStats:
        """Says the sums at once: the worker waits by itself for what of the last range is due."""
        sums = await foretold.sums()
        sealing = asyncio.ensure_future(self._in_lease(sender.seal(sums=sums), self._granted()))
        try:
            await written.end()
            return await sealing
        finally:
            sealing.cancel()
            await asyncio.gather(sealing, return_exceptions=True)

    async def _commit_ahead(self, foretold: Foretold, grant: Grant) -> None:
        await self._links.peer.commit(
            self.target,
            manifest=await foretold.manifest(),
            grant=grant,
            prompt_token_ids=foretold.prompt_token_ids,
        )

    async def handed_over(self) -> TransferStats:
        """Waits until a push whose commit was said ahead is adopted.

        Raises:
            TandemError: bytes did not arrive, the worker refused them, or it went away.
        """
        assert self._ahead is not None, "said ahead"
        stats = await self._ahead.unless_refused(self._sealed())
        await self._in_lease(self._ahead.answer(), self._granted(), late="did not adopt them")
        self.machine.advance(HandoffState.ADOPTED)
        return stats

    async def hand_over(
        self, manifest: KvManifest, *, prompt_token_ids: Sequence[int]
    ) -> TransferStats:
        """Commits a push, which may still be being sealed: the worker waits for that by itself.

        Raises:
            TandemError: bytes did not arrive, the worker refused them, or it went away.
        """
        assert self._sealing is not None, "pushed before"
        commit = partial(
            self._links.peer.commit,
            self.target,
            manifest=manifest,
            grant=self._granted(),
            prompt_token_ids=prompt_token_ids,
        )
        if self._sealing.done():
            # No task of its own, which would wait for its turn on the loop.
            stats = await self._sealed()
            await commit()
        else:
            committing = asyncio.ensure_future(commit())
            try:
                stats = await self._sealed()
                await committing
            finally:
                committing.cancel()
                await asyncio.gather(committing, return_exceptions=True)
        self.machine.advance(HandoffState.ADOPTED)
        return stats

    async def _sealed(self) -> TransferStats:
        """Waits until every byte is there."""
        assert self._sealing is not None, "pushed before"
        with self._blaming_transport():
            stats = await self._sealing
        self._links.pairs.delivered(
            address=self.target.address, grant=self._granted(), transport=self.transport
        )
        self.machine.advance(HandoffState.SEALED)
        self.machine.advance(HandoffState.COMMITTED)
        return stats

    async def abort(self, reason: str) -> None:
        """Ends the try on both sides; a peer that cannot be reached frees it by its own lease."""
        if not self.machine.try_advance(HandoffState.ABORTING):
            return
        if self._ahead is not None:
            await self._ahead.cancel()
        if self._sealing is not None:
            self._sealing.cancel()
            await asyncio.gather(self._sealing, return_exceptions=True)
        if self._sender is not None:
            await self._quietly("transfer", self._sender.abort())
        if self._asked:
            self.machine.advance(HandoffState.DRAINING)
            call = self._links.peer.abort(self.target, key=self.machine.key, reason=reason)
            await self._quietly("abort", call)
        self.machine.advance(HandoffState.ABORTED)

    async def _in_lease(
        self, call: Awaitable[T], grant: Grant, *, late: str = "took no bytes"
    ) -> T:
        """A peer that takes nothing for a whole lease is as good as gone."""
        seconds = grant.lease_ms / 1000
        try:
            async with asyncio.timeout(seconds):
                return await call
        except TimeoutError:
            raise TransportError(
                f"decode worker {self.target.worker_id} {late} for {seconds:g} s: it hangs or "
                "its network does; start a new attempt on another worker"
            ) from None

    @contextmanager
    def _blaming_transport(self) -> Iterator[None]:
        """What fails within is the transport's, as far as it is to blame."""
        try:
            yield
        except TandemError as error:
            self._links.pairs.lost(
                address=self.target.address,
                grant=self._granted(),
                transport=self.transport,
                error=error,
            )
            raise

    async def _quietly(self, what: str, call: Awaitable[object]) -> None:
        try:
            await call
        except TandemError as error:
            _log.warning(
                "cleanup failed",
                what=what,
                handoff_id=self.machine.key.handoff_id,
                attempt=self.machine.key.attempt,
                worker=self.target.worker_id,
                error=error.message,
            )

    def _granted(self) -> Grant:
        if self._grant is None:
            raise HandoffError("a transfer began without a grant; report this")
        return self._grant
