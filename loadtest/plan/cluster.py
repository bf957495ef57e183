"""A gateway with its prefill and decode workers, from a request's arrival to its last token."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from loadtest.load.outcome import Outcome
from loadtest.plan.clock import Clock
from loadtest.plan.decode_worker import DecodeWorker
from loadtest.plan.life import Life
from loadtest.plan.prefill_worker import Neighbours, PrefillWorker
from loadtest.plan.profile import Contention, MeasuredProfile
from loadtest.plan.router import order_of
from loadtest.plan.work import Costs, Work
from shared.errors import ConfigError

PROMPTS_PER_WORKER = 2
"""As the gateway's dispatcher sends whatever their length."""

TARGETS = 3
"""Decode workers that a prefill worker may ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How GPUs are shared out."""

    prefill: int
    """Prefill workers."""
    decode: int
    """Decode workers."""
    shared_device: bool = False
    """One GPU is both: the decode worker rests while a prompt is computed."""

    same_host: bool = False
    """All workers compete for the cores of one machine, as the profile's `contention` says."""

    @property
    def gpus(self) -> int:
        """Devices in all."""
        return 1 if self.shared_device else self.prefill + self.decode

    @property
    def text(self) -> str:
        """As `2P3D`."""
        return f"{self.prefill}P{self.decode}D" + (" on one" if self.shared_device else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayRules:
    """Settings of the gateway that decide who waits where."""

    balancer: str = "least_loaded"
    """How workers are chosen."""
    worker_prompt_tokens: int = 16_384
    """Prompt tokens sent to one prefill worker before others wait in the gateway."""
    queue_tokens: int = 0
    """Prompt tokens that may wait before a request is refused; 0: any number."""
    queue_requests: int = 0
    """Requests that may wait; 0: any number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What a simulation came to."""

    outcomes: list[Outcome]
    """One a request, in order of arrival."""
    prefill_use: float
    """Share of the prefill workers' time that was compute."""
    decode_use: float
    """Share of the decode workers' time with a step under way."""
    seconds: float
    """Simulated time."""


class Cluster:
    """Runs one list of requests; once.

    Args:
        profile: measured times and limits.
        split: workers.
        rules: of the gateway.
        costs: what each request takes.
        seed: of the balancer.
    """

    def __init__(
        self,
        profile: MeasuredProfile,
        *,
        split: Split,
        rules: GatewayRules,
        costs: Costs,
        seed: int,
    ) -> None:
        if min(split.prefill, split.decode) < 1:
            raise ConfigError(
                f"{split.text} serves nothing: both roles are needed; give each a worker"
            )
        self._profile = profile
        self._rules = rules
        self._costs = costs
        self._clock = Clock()
        contention = profile.contention if split.same_host else Contention()
        self._decodes = [
            DecodeWorker(
                self._clock,
                times=costs.decode,
                limits=profile.limits,
                slowdown=contention.decode,
                ended=self._ended,
            )
            for _ in range(split.decode)
        ]
        neighbours = Neighbours(
            workers=self._decodes if split.same_host else (), slowdown=contention.prefill
        )
        self._prefills = [
            PrefillWorker(
                number,
                self._clock,
                decodes=self._decodes,
                watcher=self,
                shares_with=self._decodes[0] if split.shared_device else None,
                beside=neighbours,
            )
            for number in range(split.prefill)
        ]
        self._prefill_loads = [0] * split.prefill
        self._decode_loads = [0] * split.decode
        random = Random(f"{seed}:balancer")
        self._prefill_order = order_of(rules.balancer, self._prefill_loads, random)
        self._decode_order = order_of(rules.balancer, self._decode_loads, random)
        self._queue: deque[Life] = deque()
        self._sent_tokens = self._sent_prompts = 0
        self._waiting_tokens = self._waiting_requests = 0
        self._lives: list[Life] = []
        self._left = 0
        self._decode_of: dict[Life, int] = {}

    def run(self, moments: Sequence[float]) -> Simulated:
        """Simulates until every request has ended.

        Args:
            moments: when each request comes, ascending; as many as there are costs.
        """
        works = self._costs.works
        assert len(moments) == len(works), "every request has its moment"
        self._lives = [Life(work=work, due=due) for work, due in zip(works, moments, strict=True)]
        self._left = len(self._lives)
        if self._left:
            self._clock.after(self._lives[0].due, lambda: self._arrive(0))
            self._clock.run()
        return self._result()

    def _result(self) -> Simulated:
        seconds = self._clock.now
        span = seconds or 1.0
        first_token_s = self._profile.overheads.first_token_s
        return Simulated(
            outcomes=[life.outcome(first_token_s=first_token_s) for life in self._lives],
            prefill_use=sum(w.busy_s for w in self._prefills) / (span * len(self._prefills)),
            decode_use=sum(w.busy_s for w in self._decodes) / (span * len(self._decodes)),
            seconds=seconds,
        )

    def check_idle(self) -> None:
        """Asserts that nothing is held when all requests have ended."""
        assert not self._queue, "nobody waits"
        assert not any(self._prefill_loads), "no prompt is counted"
        assert not any(self._decode_loads), "no answer is counted"
        assert self._sent_tokens == self._waiting_tokens == 0, "no tokens are counted"
        assert all(worker.idle for worker in self._decodes), "no page is held"

    # --- the gateway ------------------------------------------------------------------------

    def _arrive(self, index: int) -> None:
        if index + 1 < len(self._lives):
            wait = self._lives[index + 1].due - self._clock.now
            self._clock.after(wait, lambda: self._arrive(index + 1))
        life = self._lives[index]
        tokens, rules = life.work.request.prompt_tokens, self._rules
        waits = self._waiting_requests
        if not life.work.fits_context:
            self._fail(life, "too_long")
        elif not self._decodes[0].could_ever_take(life.work):
            self._fail(life, "too_large")
        elif waits and (
            (rules.queue_tokens and self._waiting_tokens + tokens > rules.queue_tokens)
            or (rules.queue_requests and waits >= rules.queue_requests)
        ):
            self._fail(life, "queue_full")
        else:
            self._waiting_tokens += tokens
            self._waiting_requests += 1
            self._queue.append(life)
            self._dispatch()

    def _dispatch(self) -> None:
        while self._queue and self._fits(self._queue[0].work):
            life = self._queue.popleft()
            tokens = life.work.request.prompt_tokens
            self._sent_tokens += tokens
            self._sent_prompts += 1
            (prefill,) = self._prefill_order.choose(1)
            life.decodes = self._decode_order.choose(TARGETS)
            self._count(self._prefill_loads, prefill, tokens)
            self._count(self._decode_loads, life.decodes[0], tokens)
            self._prefills[prefill].submit(life)

    def _fits(self, work: Work) -> bool:
        workers = len(self._prefills)
        if self._sent_prompts < PROMPTS_PER_WORKER * workers:
            return True
        wanted = self._sent_tokens + work.request.prompt_tokens
        return wanted <= self._rules.worker_prompt_tokens * workers

    def _count(self, loads: list[int], worker: int, tokens: int) -> None:
        loads[worker] += tokens
        order = self._prefill_order if loads is self._prefill_loads else self._decode_order
        order.changed(worker)

    # --- told by the workers ----------------------------------------------------------------

    def started(self, life: Life) -> None:
        """A prompt that is computed waits no longer."""
        self._waiting_tokens -= life.work.request.prompt_tokens
        self._waiting_requests -= 1

    def read(self, life: Life) -> None:
        """Its turn is over: the next one is sent."""
        self._sent_tokens -= life.work.request.prompt_tokens
        self._sent_prompts -= 1
        self._dispatch()

    def sealed(self, life: Life, worker: int, decode: int) -> None:
        """Whoever has it counts its tokens, and no longer whoever it was meant for."""
        tokens = life.work.request.prompt_tokens
        self._count(self._prefill_loads, worker, -tokens)
        self._count(self._decode_loads, life.decodes[0], -tokens)
        self._decodes[decode].landed(life.work)
        if not life.work.steps:
            life.last_at = life.first_at
            self._decodes[decode].release(life.work)
            self._done()
            return
        self._count(self._decode_loads, decode, tokens)
        self._decode_of[life] = decode
        self._clock.after(self._profile.overheads.handoff_s, lambda: self._join(life, decode))

    def refused(self, life: Life, worker: int) -> None:
        """No decode worker had room in time."""
        tokens = life.work.request.prompt_tokens
        self._count(self._prefill_loads, worker, -tokens)
        self._count(self._decode_loads, life.decodes[0], -tokens)
        self.started(life)
        self.read(life)
        self._fail(life, "no_room")

    def _join(self, life: Life, decode: int) -> None:
        self._decodes[decode].join(life)

    def _ended(self, life: Life) -> None:
        assert life.first_at is not None, "its prompt was read"
        self._count(self._decode_loads, self._decode_of.pop(life), -life.work.request.prompt_tokens)
        self._done()

    def _fail(self, life: Life, why: str) -> None:
        life.failure = why
        self._done()

    def _done(self) -> None:
        self._left -= 1
        if not self._left:
            self._clock.stop()
