"""What is asked: classes of requests with sizes and bounds, and the mixes that a run offers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random

_GAP_OF_TPOT = 10
"""A stall of ten tokens' time is what a reader notices."""
_LEAVE_AFTER_S = 0.5
_PAUSE_S = 0.05


class Profile(StrEnum):
    """What the server runs on; sizes and bounds follow."""

    CPU = "cpu"
    GPU = "gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Bounds in seconds; a request meets them when it meets every one."""

    ttft: float
    """Start of the request to its first text."""
    tpot: float
    """Mean time of a token after the first."""
    gap: float
    """Longest time between two pieces of text."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """A log-normal number of tokens, cut to its range."""

    low: int
    """Smallest."""
    high: int
    """Largest."""

    def draw(self, random: Random) -> int:
        """A number of tokens; 95 of 100 draws lie inside before the cut."""
        middle = math.log(self.low * self.high) / 2
        width = math.log(self.high / self.low) / 4
        return min(self.high, max(self.low, round(random.lognormvariate(middle, width))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """How a conversation goes on; each of its turns is a request."""

    turns: Sizes
    """User turns, the first one included."""
    follow_up: Sizes
    """Tokens of every later question; the prompt is all that was said before it, too."""
    think_s: tuple[float, float]
    """Least and longest time between an answer and the next question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestClass:
    """Requests of one kind; their events are counted together."""

    name: str
    """As events name it."""
    prompt: Sizes
    """Prompt tokens."""
    answer: Sizes
    """Answer tokens; end-of-text is ignored, so an answer has exactly as many as were drawn."""
    slo: Slo
    """When it is served in time."""
    prefix_tokens: int = 0
    """First tokens that all prompts of the class share."""
    leave_after_s: float | None = None
    """The client leaves so long after it began; None stays."""
    pause_s: float = 0.0
    """The client waits so long before each read; its times are then its own and no bound holds."""
    conversation: Conversation | None = None
    """Several turns; None: one request."""
    calls: bool = False
    """The first answer is a call; its result is sent back and answered in words."""

    @property
    def dialogue(self) -> bool:
        """Its requests are messages, which completions have no form for."""
        return self.calls or self.conversation is not None


@dataclass(frozen=True, slots=True)
class Workload:
    """A mix of classes."""

    shares: Mapping[str, float]
    """Share of the requests by class; they add up to 1."""


TRACE = "trace"
"""The workload whose requests are recorded ones, and their class."""

WORKLOADS: Mapping[str, Workload] = {
    "chat": Workload({"chat": 1.0}),
    "rag": Workload({"rag": 1.0}),
    "reasoning": Workload({"reasoning": 1.0}),
    "mixed": Workload({"chat": 0.6, "rag": 0.3, "reasoning": 0.1}),
    "cancel": Workload({"chat": 0.9, "cancel": 0.1}),
    "slow_reader": Workload({"chat": 0.75, "slow_reader": 0.25}),
    "multi_turn": Workload({"multi_turn": 1.0}),
    "tools": Workload({"tools": 1.0}),
    TRACE: Workload({TRACE: 1.0}),
}


def classes_of(profile: Profile) -> dict[str, RequestClass]:
    """Every class with the sizes and bounds of a profile, by name."""
    chat, rag, reasoning = _GPU if profile is Profile.GPU else _CPU
    cancel = replace(chat, name="cancel", leave_after_s=_LEAVE_AFTER_S)
    slow = replace(chat, name="slow_reader", pause_s=_PAUSE_S)
    recorded = replace(rag, name=TRACE, prefix_tokens=0)
    conversation = _GPU_CONVERSATION if profile is Profile.GPU else _CPU_CONVERSATION
    several = replace(chat, name="multi_turn", conversation=conversation)
    tools = replace(chat, name="tools", calls=True)
    kinds = (chat, rag, reasoning, cancel, slow, recorded, several, tools)
    return {each.name: each for each in kinds}


def slo(*, ttft: float, tpot: float, gap: float | None = None) -> Slo:
    """Bounds; without one for gaps it is that of ten tokens."""
    return Slo(ttft=ttft, tpot=tpot, gap=_GAP_OF_TPOT * tpot if gap is None else gap)


_GPU = (
    RequestClass(
        name="chat",
        prompt=Sizes(50, 2_000),
        answer=Sizes(50, 500),
        slo=slo(ttft=0.5, tpot=0.05),
    ),
    RequestClass(
        name="rag",
        prompt=Sizes(8_192, 131_072),
        answer=Sizes(100, 500),
        slo=slo(ttft=3.0, tpot=0.08),
        prefix_tokens=1_024,
    ),
    RequestClass(
        name="reasoning",
        prompt=Sizes(200, 2_000),
        answer=Sizes(4_096, 32_768),
        slo=slo(ttft=1.0, tpot=0.04),
    ),
)
_CPU = (
    RequestClass(
        name="chat",
        prompt=Sizes(32, 256),
        answer=Sizes(8, 48),
        slo=slo(ttft=2.0, tpot=0.2),
    ),
    RequestClass(
        name="rag",
        prompt=Sizes(512, 4_096),
        answer=Sizes(8, 32),
        slo=slo(ttft=15.0, tpot=0.3),
        prefix_tokens=128,
    ),
    RequestClass(
        name="reasoning",
        prompt=Sizes(32, 256),
        answer=Sizes(128, 1_024),
        slo=slo(ttft=4.0, tpot=0.2),
    ),
)
_GPU_CONVERSATION = Conversation(turns=Sizes(3, 10), follow_up=Sizes(20, 400), think_s=(1.0, 10.0))
_CPU_CONVERSATION = Conversation(turns=Sizes(2, 5), follow_up=Sizes(16, 96), think_s=(0.2, 1.0))
