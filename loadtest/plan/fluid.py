"""What workers can do at most, without queues: where a search begins."""

from dataclasses import dataclass

from loadtest.load.workloads import RequestClass
from loadtest.plan.cluster import Split
from loadtest.plan.profile import MeasuredProfile
from loadtest.plan.work import Costs


@dataclass(frozen=True, slots=True, kw_only=True)
class Fluid:
    """Means of one arm."""

    prefill_s: float
    """Seconds of a prefill worker that a request takes."""
    decode_s: float
    """Seconds of a decode worker that a request takes, in a full batch."""
    residence_s: float
    """Time that a request spends at the workers when nobody waits."""

    @property
    def prefill_share(self) -> float:
        """Share of the GPUs that prefill needs."""
        return self.prefill_s / (self.prefill_s + self.decode_s)

    def capacity(self, split: Split) -> float:
        """Requests a second that no split can pass."""
        if split.shared_device:
            return 1 / (self.prefill_s + self.decode_s)
        decode = split.decode / self.decode_s if self.decode_s else float("inf")
        return min(split.prefill / self.prefill_s, decode)


def fluid_of(costs: Costs, profile: MeasuredProfile, kinds: dict[str, RequestClass]) -> Fluid:
    """Means over the requests; the batch is the largest whose steps keep every class's TPOT."""
    works, limits = costs.works, profile.limits
    count = len(works)
    prefill_s = sum(work.prefill_s for work in works) / count
    steps = sum(work.steps for work in works)
    if not steps:
        return Fluid(prefill_s=prefill_s, decode_s=0.0, residence_s=prefill_s)
    # Long answers are in a batch for longer: means over steps, not over requests.
    context = sum(work.steps * (work.slots + work.steps / 2) for work in works) / steps
    front = sum(work.steps * work.pages_front for work in works) / steps
    rest = sum(work.steps * work.pages_rest for work in works) / steps
    room = min(
        [limits.pages_front / front] * bool(front) + [limits.pages_rest / rest] * bool(rest),
        default=float(limits.max_batch),
    )
    bound = min(kind.slo.tpot for kind in kinds.values())
    batch = max(1, min(limits.max_batch, int(room)))
    while batch > 1 and costs.decode.rows(batch).step(context) > bound:
        batch -= 1
    step = costs.decode.rows(batch).step(context)
    mean_steps = steps / count
    return Fluid(
        prefill_s=prefill_s,
        decode_s=mean_steps * step / batch,
        residence_s=prefill_s + mean_steps * step,
    )
