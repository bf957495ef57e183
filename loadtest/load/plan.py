"""The requests of a run, in order: the same seed plans the same ones, however long it runs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

from loadtest.load.workloads import RequestClass, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """What one request is."""

    index: int
    """Its place in the run, from 0."""
    kind: RequestClass
    """Its class."""
    prompt_tokens: int
    """Length of its prompt."""
    answer_tokens: int
    """Length of its answer."""
    blocks: tuple[int, ...] = ()
    """Names of its prompt's parts in a trace: equal names are equal tokens."""


def planned_requests(
    workload: Workload, classes: Mapping[str, RequestClass], *, seed: int
) -> Iterator[PlannedRequest]:
    """Requests without end; each is drawn from a generator of its own.

    Args:
        workload: the mix.
        classes: by name.
        seed: of the run.
    """
    names, shares = list(workload.shares), list(workload.shares.values())
    index = 0
    while True:
        random = Random(f"{seed}:request:{index}")
        kind = classes[random.choices(names, shares)[0]]
        yield PlannedRequest(
            index=index,
            kind=kind,
            prompt_tokens=kind.prompt.draw(random),
            answer_tokens=kind.answer.draw(random),
        )
        index += 1
