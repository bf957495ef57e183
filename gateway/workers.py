"""Who is alive, how busy they are as far as this gateway knows, and which pair comes next."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from gateway.balancing.base import Balancer, Candidate
from gateway.breaker import Breaker, BreakerSettings
from gateway.clients.events import Target
from gateway.pairing.pairs import Ranked, choose_pair
from shared.discovery.base import Discovery
from shared.discovery.card import WorkerCard
from shared.errors import InternalError, OverloadedError, TandemError, UnavailableError

PREFILL = "prefill"
DECODE = "decode"

_MAX_TARGETS = 3
_MAX_BREAKERS = 256
_RETRY_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The workers of one attempt."""

    prefill: Target
    """Reads the prompt."""
    decodes: tuple[Target, ...]
    """May take the KV, in order of preference; at least one."""
    reason: str
    """How they were chosen."""
    local: str = ""
    """Why one decode worker is to read the prompt as well; empty: a prefill worker reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoicePolicy:
    """How pairs are chosen."""

    name: str
    """Name of the balancer, for reports."""
    make_balancer: Callable[[], Balancer]
    """Makes one balancer a role."""
    link_band_tokens: int = 0
    """How much more load the workers of a faster link may have; 0 does not look at links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What the live workers serve."""

    name: str
    """Their name for it."""
    max_model_len: int
    """Longest context all of them take, in tokens."""
    model_hash: str
    """Over configuration and weights."""
    methods: tuple[str, ...]
    """Their prunings and page selections, one hash for all workers of the same."""


class Workers:
    """Live view over a discovery.

    Args:
        discovery: source of cards.
        policy: how pairs are chosen.
        breaker: settings of every worker's breaker.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        discovery: Discovery,
        *,
        policy: ChoicePolicy,
        breaker: BreakerSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._discovery = discovery
        self._policy = policy
        self._balancers = {role: policy.make_balancer() for role in (PREFILL, DECODE)}
        self._breaker_settings = breaker
        self._clock = clock
        self._breakers: dict[str, Breaker] = {}
        self._incarnations: dict[str, str] = {}
        self._in_flight: dict[str, int] = {}
        self._served_by: tuple[WorkerCard, ...] = ()
        self._served: ServedModel | None = None

    @property
    def degraded(self) -> bool:
        """Whether discovery works on what it last knew."""
        return self._discovery.degraded

    def choose(self, *, avoid: set[str]) -> Pair:
        """The next pair; workers in `avoid` only when there is no other.

        Raises:
            UnavailableError: a role has no worker that takes work.
        """
        choice = choose_pair(
            self._ordered(PREFILL, self._live(PREFILL), avoid),
            self._ordered(DECODE, self._live(DECODE), avoid),
            band_tokens=self._policy.link_band_tokens,
        )
        if not choice.decodes:
            raise _none_left(DECODE, "none serves the model of the prefill worker")
        prefill, decodes = choice.prefill, choice.decodes[:_MAX_TARGETS]
        now = self._clock()
        self._forget_breakers()
        for card in (prefill, decodes[0]):
            self._breaker(card.worker_id).chosen(now)
        return Pair(
            prefill=Target(prefill.worker_id, prefill.address),
            decodes=tuple(Target(d.worker_id, d.address) for d in decodes),
            reason=", ".join(filter(None, (self._policy.name, choice.link.text))),
        )

    def choose_local(self, tokens: int, *, avoid: set[str], why: str) -> Pair:
        """A decode worker that reads a prompt itself; those in `avoid` only without another.

        Raises:
            UnavailableError: none takes a prompt of this length.
        """
        cards = [card for card in self._live(DECODE) if card.local_prefill_tokens >= tokens]
        if not cards:
            raise _none_left(DECODE, f"none reads prompts of {tokens} tokens itself")
        card = self._ordered(DECODE, cards, avoid)[0].card
        self._forget_breakers()
        self._breaker(card.worker_id).chosen(self._clock())
        target = Target(card.worker_id, card.address)
        return Pair(prefill=target, decodes=(target,), reason=self._policy.name, local=why)

    def readers(self, tokens: int = 1, *, avoid: Collection[str] = ()) -> int:
        """Number of decode workers that would read a prompt of this length themselves."""
        try:
            live = self._live(DECODE)
        except UnavailableError:
            return 0
        takes = (card for card in live if card.local_prefill_tokens >= tokens)
        return sum(card.worker_id not in avoid for card in takes)

    def longest_read(self) -> int:
        """Longest prompt that some decode worker would read itself, in tokens; 0: none would."""
        return max((card.local_prefill_tokens for card in self._discovery.cards(DECODE)), default=0)

    def taking_prompts(self) -> int:
        """Number of prefill workers that take work; 0 as long as no request can be served."""
        try:
            prefills, decodes = self._live(PREFILL), self._live(DECODE)
        except UnavailableError:
            return 0
        return len(prefills) if _any_pair(prefills, decodes) else 0

    def ready(self, role: str) -> int:
        """Number of workers that do a role's work, answer and do not drain.

        Decode workers that read prompts themselves do the work of both.
        """
        now = self._clock()
        cards = self._discovery.cards(role)
        if role == PREFILL:
            readers = (c for c in self._discovery.cards(DECODE) if c.local_prefill_tokens)
            cards = [*cards, *readers]
        return sum(
            not card.draining and self._breaker(card.worker_id).allows(now) for card in cards
        )

    def has_alternative(self, *, avoid: set[str]) -> bool:
        """Whether another prefill worker than those in `avoid` takes work."""
        cards = self._discovery.cards(PREFILL)
        return any(card.worker_id not in avoid and not card.draining for card in cards)

    @contextmanager
    def hold(self, worker_id: str, tokens: int) -> Iterator[None]:
        """Counts `tokens` as in flight at a worker while the block runs."""
        self._in_flight[worker_id] = self._in_flight.get(worker_id, 0) + tokens
        try:
            yield
        finally:
            left = self._in_flight[worker_id] - tokens
            if left:
                self._in_flight[worker_id] = left
            else:
                del self._in_flight[worker_id]

    def in_flight_tokens(self, worker_id: str) -> int:
        """Tokens counted by `hold`."""
        return self._in_flight.get(worker_id, 0)

    def succeeded(self, worker_id: str) -> None:
        """A worker did what it was asked."""
        self._breaker(worker_id).succeeded()

    def failed(self, worker_id: str, error: TandemError) -> None:
        """A call failed; a lost connection and a defect count against the worker.

        A worker that says it has no room answers well: it is out of rotation for nobody.
        """
        lost = isinstance(error, UnavailableError) and error.error_code == UnavailableError.code
        if lost or isinstance(error, InternalError):
            self._breaker(worker_id).failed(self._clock())
        elif isinstance(error, OverloadedError):
            self._breaker(worker_id).succeeded()

    def gone(self, worker_id: str) -> None:
        """Nobody listens at a worker's address; it is not even a last resort for a while."""
        self._breaker(worker_id).failed(self._clock(), gone=True)

    def served(self) -> ServedModel | None:
        """The model of the live workers; None when none is known."""
        cards = (*self._discovery.cards(PREFILL), *self._discovery.cards(DECODE))
        if cards != self._served_by:  # asked several times a request, and the answer seldom changes
            self._served_by, self._served = cards, _served_by(cards)
        return self._served

    def missing(self) -> str | None:
        """Why a request cannot be served now; None when it can."""
        if self.readers():
            return None
        try:
            prefills, decodes = self._live(PREFILL), self._live(DECODE)
        except UnavailableError as error:
            return error.error_code
        return None if _any_pair(prefills, decodes) else "no_matching_pair"

    def describe(self) -> list[dict[str, object]]:
        """Every known worker, for health answers."""
        now = self._clock()
        return [
            {
                "worker_id": card.worker_id,
                "role": role,
                "address": card.address,
                "draining": card.draining,
                "reachable": self._breaker(card.worker_id).allows(now),
                "running": card.running,
                "queued_tokens": card.queued_tokens,
                "free_pages": card.free_pages,
                "total_pages": card.total_pages,
                "local_prefill_tokens": card.local_prefill_tokens,
                "transports": list(card.transports),
                "rejected_transports": list(card.rejected_transports),
                "faults": card.faults,
                "device": card.device,
                "place": asdict(card.place),
                "pairs": [asdict(pair) for pair in card.pairs],
            }
            for role in (PREFILL, DECODE)
            for card in self._discovery.cards(role)
        ]

    def _live(self, role: str) -> list[WorkerCard]:
        cards = self._discovery.cards(role)
        live = [card for card in cards if not card.draining]
        if not live:
            # Without prefill workers the decode workers were to read prompts, until they drain.
            known = cards or self._discovery.cards(DECODE)
            if known and all(card.draining for card in known):
                raise UnavailableError(
                    f"every {known[0].role} worker is draining: a roll-out or a shutdown is under "
                    "way; retry in a moment",
                    code="draining",
                    retry_after_s=_RETRY_S,
                )
            raise _none_left(role, "none is registered or reachable")
        now = self._clock()
        self._welcome(live)
        live = [card for card in live if not self._breaker(card.worker_id).gone(now)]
        if not live:
            raise _none_left(role, "nobody listens at its address")
        # With every breaker open, trying a worker is better than refusing everyone.
        return [card for card in live if self._breaker(card.worker_id).allows(now)] or live

    def _welcome(self, cards: list[WorkerCard]) -> None:
        """A new process under a known name starts with a clean record."""
        for card in cards:
            if self._incarnations.setdefault(card.worker_id, card.incarnation) != card.incarnation:
                self._incarnations[card.worker_id] = card.incarnation
                self._breakers.pop(card.worker_id, None)

    def _ordered(self, role: str, cards: list[WorkerCard], avoid: set[str]) -> list[Ranked]:
        fresh = [card for card in cards if card.worker_id not in avoid]
        by_id = {card.worker_id: card for card in fresh or cards}
        order = self._balancers[role].order([self._candidate(c) for c in by_id.values()])
        return [Ranked(card=by_id[c.worker_id], load=c.load) for c in order]

    def _candidate(self, card: WorkerCard) -> Candidate:
        return Candidate(
            worker_id=card.worker_id,
            in_flight_tokens=self.in_flight_tokens(card.worker_id),
            reported_tokens=card.queued_tokens,
            free_pages=card.free_pages,
        )

    def _forget_breakers(self) -> None:
        """Workers get new names when they restart; their old breakers must not pile up."""
        if len(self._breakers) > _MAX_BREAKERS:
            known = {c.worker_id for role in (PREFILL, DECODE) for c in self._discovery.cards(role)}
            self._breakers = {w: b for w, b in self._breakers.items() if w in known}
            self._incarnations = {w: i for w, i in self._incarnations.items() if w in known}

    def _breaker(self, worker_id: str) -> Breaker:
        if worker_id not in self._breakers:
            self._breakers[worker_id] = Breaker(self._breaker_settings)
        return self._breakers[worker_id]


def _none_left(role: str, why: str) -> UnavailableError:
    return UnavailableError(
        f"no {role} worker is available ({why}): it is still starting, or it stopped; "
        f"see /health/ready and the log of the {role} service, then retry",
        code=f"no_{role}_worker",
        retry_after_s=_RETRY_S,
    )


def _any_pair(prefills: Sequence[WorkerCard], decodes: Sequence[WorkerCard]) -> bool:
    """Whether some prefill worker's KV fits some decode worker's model."""
    return any(
        p.model == d.model or not p.model.differences(d.model) for p in prefills for d in decodes
    )


def _served_by(cards: tuple[WorkerCard, ...]) -> ServedModel | None:
    if not cards:
        return None
    return ServedModel(
        name=cards[0].model.name,
        max_model_len=min(card.max_model_len for card in cards),
        model_hash=cards[0].model.model_hash,
        methods=tuple(sorted({f"{card.role} {card.methods_hash}" for card in cards})),
    )
