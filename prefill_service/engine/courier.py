"""Gets one KV cache to the first of several decode workers that takes it, within a bound of tries.

A decode worker remembers a handoff that was aborted and never grants it again under the same name,
so a worker that failed once is not asked again: a caller that wants that starts a new attempt.
"""

import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import structlog

from prefill_service.engine.handoff_notes import HandoffNotes
from prefill_service.engine.job import Target
from prefill_service.engine.parcel import Parcel
from prefill_service.engine.sender import Busy, Delivery, Links
from shared.errors import (
    HandoffError,
    InvalidRequestError,
    OverloadedError,
    TandemError,
    UnavailableError,
    UnreachableError,
)
from shared.transport.base import TransferStats
from shared.transport.paired import NO_TRANSPORT
from shared.types.handoff import HandoffKey

FIRST_BACKOFF_S = 0.02
MAX_BACKOFF_S = 1.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPolicy:
    """How persistent a courier is."""

    tries: int = 3
    """Deliveries in all."""
    reserve_wait_s: float = 10.0
    """Longest seconds of asking workers that are busy."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A decode worker adopted the cache: by which delivery, and how the bytes went."""

    delivery: Delivery
    stats: TransferStats


class Courier:
    """Owns the deliveries of one handoff; at most one is open, and `abort` ends it.

    Args:
        key: the handoff.
        parcel: the cache, maybe still being computed.
        targets: decode workers, best first.
        links: ways to them.
        policy: bounds.
        notes: of a traced prompt, of when its bytes went.
    """

    def __init__(
        self,
        *,
        key: HandoffKey,
        parcel: Parcel,
        targets: tuple[Target, ...],
        links: Links,
        policy: DeliveryPolicy,
        notes: HandoffNotes | None = None,
    ) -> None:
        self._key = key
        self._parcel = parcel
        self._left = list(targets)
        self._links = links
        self._policy = policy
        self._notes = notes
        self._open: Delivery | None = None
        self._ending: asyncio.Task[None] | None = None
        self._errors: list[TandemError] = []

    @property
    def room_at(self) -> Target | None:
        """The target that granted room for the delivery that is next, or under way; or None."""
        return self._open.target if self._open is not None and self._open.granted else None

    async def reserve(self) -> None:
        """Gets room on the first target that grants it; asks busy ones again, with backoff.

        Raises:
            OverloadedError: all stayed busy.
            UnavailableError: all drain or are gone.
            InvalidRequestError: the request can be served by none of them.
            HandoffError: none could be reached or used.
        """
        until = time.monotonic() + self._policy.reserve_wait_s
        for backoff in _backoffs():
            busy = await self._ask_all()
            if self._open is not None:
                return
            if not busy:
                raise self._unusable()
            if all(answer.reason == "draining" for answer in busy):
                raise UnavailableError(
                    f"all {len(busy)} decode workers drain: they are being shut down; "
                    "retry with other decode workers",
                    code="draining",
                )
            wait = max(backoff, min(answer.retry_after_s for answer in busy))
            if time.monotonic() + wait > until:
                raise OverloadedError(
                    f"all decode workers stayed busy for {self._policy.reserve_wait_s:g} s "
                    f"({busy[0].reason}): their KV memory is full; retry or add decode workers",
                    retry_after_s=max(wait, 1.0),
                )
            await asyncio.sleep(wait)

    async def deliver(self) -> Arrived:
        """Pushes and commits, on the reserved target and then on further ones.

        The cache may be adopted before the first token is drawn; it is held open for an abort until
        the prompt is computed.

        Raises:
            TandemError: every try failed.
        """
        self._parcel.prepare()
        for _ in range(self._policy.tries):
            if self._open is None:
                await self.reserve()
            delivery = self._open
            assert delivery is not None, "reserve opens a delivery or raises"
            try:
                stats = await self._hand_over(delivery)
            except TandemError as error:
                await self._give_up(delivery, error)
            else:
                await self._parcel.computed()
                self._open = None
                return Arrived(delivery, stats)
        raise self._unusable()

    async def _hand_over(self, delivery: Delivery) -> TransferStats:
        parcel = self._parcel
        await delivery.push(parcel.slab, foretold=parcel.foretold(self._key))
        if delivery.commits_ahead:
            return await delivery.handed_over()
        manifest = await parcel.manifest(self._key, check=delivery.check)
        return await delivery.hand_over(manifest, prompt_token_ids=parcel.prompt_token_ids)

    async def abort(self, reason: str) -> None:
        """Ends what is open and returns when it has ended; a cancel of the caller stops neither."""
        if self._open is not None:
            self._ending = asyncio.ensure_future(self._open.abort(reason))
            self._open = None
        if self._ending is not None:
            await asyncio.shield(self._ending)

    async def _ask_all(self) -> list[Busy]:
        busy: list[Busy] = []
        for target in list(self._left):
            self._open = Delivery(
                key=self._key, target=target, links=self._links, notes=self._notes
            )
            try:
                answer = await self._open.reserve(self._parcel.terms)
            except TandemError as error:
                self._links.grants.refused(target)
                await self._give_up(self._open, error)
                continue
            if answer is None:
                self._links.grants.granted(target)
                return []
            self._links.grants.refused(target)
            busy.append(answer)
            self._open = None
        return busy

    async def _give_up(self, delivery: Delivery, error: TandemError) -> None:
        self._errors.append(error)
        self._left.remove(delivery.target)
        _log.warning(
            "delivery failed",
            handoff_id=self._key.handoff_id,
            attempt=self._key.attempt,
            state=delivery.machine.state.value,
            worker=delivery.target.worker_id,
            code=error.error_code,
            error=error.message,
        )
        await self.abort(error.error_code)

    def _unusable(self) -> TandemError:
        error = self._errors[-1] if self._errors else None
        if isinstance(error, InvalidRequestError):
            return error
        # The message may reach a client, so that addresses and texts of peers stay in the log.
        if error is not None and all(isinstance(e, UnreachableError) for e in self._errors):
            return UnavailableError(
                f"nobody listens at the addresses of {len(self._errors)} decode workers: they "
                "stopped; retry when one is back",
                code="no_decode_worker",
            )
        if error is not None and error.error_code == NO_TRANSPORT:
            return error  # names transports and reasons, no addresses
        code = "none" if error is None else error.error_code
        return HandoffError(
            f"the KV cache could not be delivered to any decode worker (last failure: {code}): "
            "they died, refused it or cannot be reached; start a new attempt"
        )


def _backoffs() -> Iterator[float]:
    """Endless waits in seconds: doubling, capped, jittered so that waiters spread out."""
    wait = FIRST_BACKOFF_S
    while True:
        yield wait * random.uniform(0.5, 1.5)  # noqa: S311  spreads waits, guards nothing
        wait = min(MAX_BACKOFF_S, wait * 2)
