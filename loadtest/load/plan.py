"""The requests of a run, in order: the same seed plans the same ones, however long it runs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

from loadtest.load.workloads import RequestClass, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowUp:
    """A later turn of a conversation."""

    think_s: float
    """Time between the answer before and this question."""
    prompt_tokens: int
    """Length of the question alone."""
    answer_tokens: int
    """Length of its answer."""


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
    follow_ups: tuple[FollowUp, ...] = ()
    """Later turns of its conversation."""

    @property
    def num_turns(self) -> int:
        """Requests that it comes to when each is answered."""
        return 1 + len(self.follow_ups) + self.kind.calls


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
            follow_ups=_follow_ups(kind, random),
        )
        index += 1


def _follow_ups(kind: RequestClass, random: Random) -> tuple[FollowUp, ...]:
    conversation = kind.conversation
    if conversation is None:
        return ()
    return tuple(
        FollowUp(
            think_s=random.uniform(*conversation.think_s),
            prompt_tokens=conversation.follow_up.draw(random),
            answer_tokens=kind.answer.draw(random),
        )
        for _ in range(conversation.turns.draw(random) - 1)
    )
