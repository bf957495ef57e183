"""The generator: sends requests when they are due, and notes how late it was itself."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from time import perf_counter

import gevent
from gevent.event import Event
from gevent.pool import Group

from loadtest.load.courses import Client, Course, Turn, course_of
from loadtest.load.exchange import Exchange, Ticket
from loadtest.load.outcome import Outcome
from loadtest.load.plan import PlannedRequest
from loadtest.load.prompts import PromptMaker
from loadtest.load.record import Record
from loadtest.load.run_watch import RunWatch
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
        self._watch = RunWatch(settings, self._schedule)
        self._origin: float | None = None
        self._busy = self.users
        self._over = Event()
        self._under_way: dict[int, Exchange] = {}
        self._keys = count()
        self.record = Record(planned=sum(request.num_turns for _, request in self._schedule))

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
            course, first = self._ready(request)
            self._follow(course, first, Ticket(request, self.clock()))

    def _keep_the_schedule(self) -> None:
        group = Group()
        try:
            for arrival, request in self._schedule:
                course, first = self._ready(request)
                self._wait_until(arrival.due_s)
                if self._hopeless(arrival.stage, arrival.due_s):
                    return
                ticket = Ticket(request, arrival.due_s, arrival.stage)
                group.spawn(self._follow, course, first, ticket)
            group.join(timeout=self._settings.drain_s)
        finally:
            late = list(self._under_way.values())
            group.kill()
            for exchange in late:
                exchange.cut()
                self._end(exchange)

    def _hopeless(self, stage: int, due_s: float) -> bool:
        if self._settings.keep_going:
            return False
        self.record.stop = self._watch.arrival(
            stage, due_s=due_s, now_s=self.clock(), under_way=self._under_way.values()
        )
        return self.record.stop is not None

    def _wait_until(self, due_s: float) -> None:
        gevent.sleep(0)  # one that is late lets those before it begin
        while (seconds := due_s - self.clock()) > 0:
            gevent.sleep(seconds)

    def _ready(self, request: PlannedRequest) -> tuple[Course, Turn]:
        """The first turn is made before it is due, so that its cost is no lag."""
        course = course_of(request, client=self._client, prompts=self._prompts)
        return course, next(course)

    def _follow(self, course: Course, turn: Turn, ticket: Ticket) -> None:
        """Asks turn after turn; later ones are due when the user has thought."""
        while True:
            ticket = replace(ticket, must_call=turn.must_call)
            exchange = self._one(turn, ticket)
            answered_s = self.clock()
            try:
                turn = course.send(exchange)
            except StopIteration:
                return
            due_s = answered_s + turn.think_s
            self._wait_until(due_s)
            ticket = replace(ticket, due_s=due_s, turn=ticket.turn + 1)

    def _one(self, turn: Turn, ticket: Ticket) -> Exchange:
        key = next(self._keys)
        self._under_way[key] = exchange = Exchange(ticket, self.clock)
        try:
            turn.send(exchange)
        finally:
            del self._under_way[key]
        self._end(exchange)
        return exchange

    def _end(self, exchange: Exchange) -> None:
        outcome = exchange.outcome()
        self.record.outcomes.append(outcome)
        self._watch.ended(exchange, outcome)
        self._listener(outcome)
