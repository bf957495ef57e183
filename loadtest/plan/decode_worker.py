"""A decode worker: continuous batching over rows whose pages are held from the reservation on.

Between two changes of the batch all steps are one event: their times add up in closed form.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

from loadtest.plan.clock import Clock
from loadtest.plan.curves import DecodeTimes, StepCurve
from loadtest.plan.life import Life
from loadtest.plan.profile import WorkerLimits
from loadtest.plan.work import Work


class DecodeWorker:
    """Grants room, and steps what has arrived.

    Args:
        clock: simulated time.
        times: of steps.
        limits: rows, pages and slab.
        slowdown: how much longer steps take while a prompt is computed beside them.
        ended: told of every row that is complete.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        times: DecodeTimes,
        limits: WorkerLimits,
        slowdown: float = 1.0,
        ended: Callable[[Life], None],
    ) -> None:
        self._clock = clock
        self._times = times
        self._limits = limits
        self._ended = ended
        self._slowdown = slowdown
        self._prompts_beside = 0
        self._factor = 1.0
        self.free_front = limits.pages_front
        self.free_rest = limits.pages_rest
        self.free_slab = limits.slab_bytes
        self.receives_until = 0.0
        self.rows_seen = 0
        self.busy_s = 0.0
        self._steps_done = 0
        self._context_sum = 0.0
        self._ends: list[tuple[int, int, Life]] = []
        self._arrived: deque[Life] = deque()
        self._curve: StepCurve | None = None
        self._began = 0.0
        self._stopped = 0.0
        self._planned = 0
        self._plan_number = 0
        self._cut = False
        self._gaps: list[tuple[int, float]] = []
        self._most_gaps = 64
        self._waiting_for_pause: list[Callable[[], None]] = []
        self._pauses = 0

    # --- room -------------------------------------------------------------------------------

    def could_ever_take(self, work: Work) -> bool:
        """Whether an idle worker would have room."""
        limits = self._limits
        return (
            work.pages_front <= limits.pages_front
            and work.pages_rest <= limits.pages_rest
            and work.nbytes <= limits.slab_bytes
        )

    def reserve(self, work: Work) -> bool:
        """Takes slab and pages, growth included, or nothing."""
        if (
            work.pages_front > self.free_front
            or work.pages_rest > self.free_rest
            or work.nbytes > self.free_slab
        ):
            return False
        self.free_front -= work.pages_front
        self.free_rest -= work.pages_rest
        self.free_slab -= work.nbytes
        return True

    def landed(self, work: Work) -> None:
        """The KV is in its pages: the slab is free again."""
        self.free_slab += work.nbytes

    def release(self, work: Work) -> None:
        """Gives the pages back."""
        self.free_front += work.pages_front
        self.free_rest += work.pages_rest

    @property
    def idle(self) -> bool:
        """Whether everything was given back."""
        limits = self._limits
        return (self.free_front, self.free_rest, self.free_slab) == (
            limits.pages_front,
            limits.pages_rest,
            limits.slab_bytes,
        )

    # --- steps ------------------------------------------------------------------------------

    def join(self, life: Life) -> None:
        """Lets a row take part from the next step on, when the batch has room for it."""
        self._arrived.append(life)
        if self._curve is None:
            self._plan()
        elif len(self._ends) < self._limits.max_batch:
            self._cut_short()

    def pause(self, then: Callable[[], None]) -> None:
        """Rests from the end of the current step until `resume`; for a device that two share."""
        self._pauses += 1
        self._waiting_for_pause.append(then)
        if self._curve is None:
            self._rest()
        else:
            self._cut_short()

    def resume(self) -> None:
        """Steps again, unless another pause holds."""
        self._pauses -= 1
        if self._curve is None:
            self._plan()

    @property
    def stepping(self) -> bool:
        """Whether a step is under way."""
        return self._curve is not None

    def prompt_beside(self, *, begins: bool) -> None:
        """A prompt begins or ends on the same host; it counts from the next step on."""
        self._prompts_beside += 1 if begins else -1
        if self._slowdown > 1 and self._curve is not None:
            self._cut_short()

    def _cut_short(self) -> None:
        """Ends the segment with the step that is under way."""
        if self._cut:
            return
        self._cut = True
        assert self._curve is not None, "only a segment that runs is cut"
        context = self._context_sum / len(self._ends)
        steps = self._curve.steps_until(
            context, (self._clock.now - self._began) / self._factor, most=self._planned
        )
        if steps < self._planned:
            self._schedule(steps)

    def _plan(self) -> None:
        """Fills the batch and runs to the first end of a row."""
        if self._pauses:
            self._rest()
            return
        stayed = len(self._ends)
        taken = []
        while self._arrived and len(self._ends) < self._limits.max_batch:
            taken.append(self._take(self._arrived.popleft()))
        if not self._ends:
            return
        self._curve = self._times.rows(len(self._ends))
        self._began = self._clock.now
        self._cut = False
        self._factor = self._slowdown if self._prompts_beside else 1.0
        first_step = self._factor * self._curve.step(self._context_sum / len(self._ends))
        if stayed and self._began > self._stopped:
            # After a pause; of those who join now it is no gap, they count from their first token.
            self._remember(self._began + first_step - self._stopped)
        for life in taken:
            assert life.first_at is not None, "its prompt was read"
            # The handoff lies between its first two tokens.
            life.longest_gap = self._began + first_step - life.first_at
        self._schedule(self._ends[0][0] - self._steps_done)

    def _take(self, life: Life) -> Life:
        self.rows_seen += 1
        life.joined_step = self._steps_done
        # Its own last token is written and read by the step that it feeds.
        self._context_sum += life.work.slots + 1
        heappush(self._ends, (self._steps_done + life.work.steps, self.rows_seen, life))
        return life

    def _schedule(self, steps: int) -> None:
        assert self._curve is not None, "a batch has its curve"
        self._planned = steps
        self._plan_number += 1
        number = self._plan_number
        context = self._context_sum / len(self._ends)
        seconds = self._factor * self._curve.total(context, steps)
        left = self._began + seconds - self._clock.now
        self._clock.after(left, lambda: self._segment_over(number, seconds))

    def _segment_over(self, number: int, seconds: float) -> None:
        if number != self._plan_number:
            return  # it was cut short
        assert self._curve is not None, "it ran"
        rows, steps = len(self._ends), self._planned
        longest = self._factor * self._curve.step(self._context_sum / rows + steps - 1)
        self._curve = None
        self._stopped = self._clock.now
        self.busy_s += seconds
        self._steps_done += steps
        self._context_sum += rows * steps
        self._remember(longest)
        while self._ends and self._ends[0][0] == self._steps_done:
            life = heappop(self._ends)[2]
            self._context_sum -= life.work.slots + 1 + life.work.steps
            self._finish(life)
        self._plan()

    def _finish(self, life: Life) -> None:
        life.last_at = self._clock.now
        life.longest_gap = max(life.longest_gap, self._longest_since(life.joined_step))
        self.release(life.work)
        self._ended(life)

    def _remember(self, seconds: float) -> None:
        """Keeps, of the gaps so far, those that no later one surpassed."""
        while self._gaps and self._gaps[-1][1] <= seconds:
            self._gaps.pop()
        self._gaps.append((self._steps_done, seconds))
        if len(self._gaps) > self._most_gaps:
            oldest = min(life.joined_step for _, _, life in self._ends)
            del self._gaps[: bisect_left(self._gaps, (oldest + 1, 0.0))]
            self._most_gaps = 64 + 2 * len(self._gaps)

    def _longest_since(self, step: int) -> float:
        """The longest step of any segment that ended after `step` steps."""
        return self._gaps[bisect_left(self._gaps, (step + 1, 0.0))][1]

    def _rest(self) -> None:
        waiting, self._waiting_for_pause = self._waiting_for_pause, []
        for then in waiting:
            then()
