"""The generator: sends requests when they are due, and notes how late it was itself."""

from collections.abc import Callable
from itertools import count
from time import perf_counter

import gevent
from gevent.event import Event
from gevent.pool import Group

from loadtest.load.exchange import Exchange, Ticket
from loadtest.load.outcome import Failure, Outcome
from loadtest.load.plan import PlannedRequest
from loadtest.load.prompts import PromptMaker
from loadtest.load.record import Record
from loadtest.load.rest import Client
from loadtest.load.schedule import plan_of, schedule_of
from loadtest.load.settings import LoadSettings

Listener = Callable[[Outcome], None]


class Generator:
    """Offers the requests of a run.

    Args:
        settings: what is offered.
        client: puts a request.
        prompts: makes its prompt.
        listener: told of every outcome.
    """

    def __init__(
        self, settings: LoadSettings, *, client: Client, prompts: PromptMaker, listener: Listener
    ) -> None:
        self._settings = settings
        self._client = client
        self._prompts = prompts
        self._listener = listener
        self._schedule = [] if settings.closed_users else schedule_of(settings)
        self._plan = plan_of(settings)
        self._origin: float | None = None
        self._busy = settings.closed_users or 1
        self._over = Event()
        self._under_way: dict[int, Exchange] = {}
        self._keys = count()
        self.record = Record(planned=len(self._schedule))

    @property
    def users(self) -> int:
        """How many greenlets call `serve`: one in an open loop."""
        return self._settings.closed_users or 1

    @property
    def over(self) -> bool:
        """Every caller of `serve` has come back."""
        return bool(self._over.is_set())

    def clock(self) -> float:
        """Seconds since the run began, which is when the first user asks."""
        now = perf_counter()
        if self._origin is None:
            self._origin = now
        return now - self._origin

    def serve(self) -> None:
        """The life of one user; returns when there is nothing more to ask."""
        self.clock()
        if self._settings.closed_users:
            self._ask_until_the_end()
        else:
            self._keep_the_schedule()
        self._busy -= 1
        if self._busy == 0:
            self.record.complete = True
            self._over.set()

    def _ask_until_the_end(self) -> None:
        while self.clock() < self._settings.seconds:
            request = next(self._plan)
            send = self._ready(request)
            self._one(send, Ticket(request, self.clock()))

    def _keep_the_schedule(self) -> None:
        group = Group()
        try:
            for arrival, request in self._schedule:
                send = self._ready(request)
                gevent.sleep(max(0.0, arrival.due_s - self.clock()))
                group.spawn(self._one, send, Ticket(request, arrival.due_s, arrival.stage))
            group.join(timeout=self._settings.drain_s)
        finally:
            late = list(self._under_way.values())
            group.kill()
            for exchange in late:
                exchange.fail(Failure.UNFINISHED, "the run was over")
                self._end(exchange)

    def _ready(self, request: PlannedRequest) -> Callable[[Exchange], None]:
        """Made before it is due, so that its cost is no lag."""
        return self._client.prepared(self._prompts.make(request), request.answer_tokens)

    def _one(self, send: Callable[[Exchange], None], ticket: Ticket) -> None:
        key = next(self._keys)
        self._under_way[key] = exchange = Exchange(ticket, self.clock)
        try:
            send(exchange)
        finally:
            del self._under_way[key]
        self._end(exchange)

    def _end(self, exchange: Exchange) -> None:
        outcome = exchange.outcome()
        self.record.outcomes.append(outcome)
        self._listener(outcome)
