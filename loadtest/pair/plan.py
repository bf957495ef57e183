"""What is asked of a pair: methods, prompt lengths, how many at once, and how often."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

from gateway.sdk.params import ModeName
from shared.errors import ConfigError

HTTP, GRPC = "http", "grpc"
CLIENTS = (HTTP, GRPC)
"""How requests are sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairArm:
    """Which methods a request asks for."""

    title: str
    """In tables."""
    mode: ModeName
    """Methods."""
    keep_rate: float | None = None
    """Share of the prompt that CLAA keeps; None: it does not run."""


ARMS: Mapping[str, PairArm] = {
    "full": PairArm(title="full", mode="full"),
    "claa10": PairArm(title="CLAA 10 %", mode="prune", keep_rate=0.1),
    "claa20": PairArm(title="CLAA 20 %", mode="prune", keep_rate=0.2),
    "delta": PairArm(title="DELTA", mode="sparse"),
    "both10": PairArm(title="CLAA 10 % + DELTA", mode="both", keep_rate=0.1),
}
"""Arms by name; ratios are to the first one."""

BASE = "full"

PROMPTS = (10_000, 32_000)
"""Usual prompt lengths in tokens, on GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """So many requests side by side, so often."""

    at_once: int
    """Requests that are sent together."""
    rounds: int
    """Measured rounds; each sends this many with every arm."""
    warm_ups: int
    """Rounds before them that are not counted: first uses capture graphs and grow pools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairPlan:
    """What is run.

    Raises:
        ConfigError: values that do not fit together.
    """

    arms: tuple[str, ...] = tuple(ARMS)
    """Names, in the order of the first round; later ones turn it around."""
    prompts: tuple[int, ...] = PROMPTS
    """Prompt tokens."""
    new_tokens: int = 256
    """Tokens of an answer."""
    loads: tuple[Load, ...] = (
        Load(at_once=1, rounds=4, warm_ups=1),
        Load(at_once=16, rounds=2, warm_ups=1),
    )
    """Side by side."""
    short_rounds: int = 6
    """Rounds more, one request at a time, whose answers are short: times to first token."""
    short_tokens: int = 4
    """Tokens of those answers."""
    seed: int = 0
    """Of the prompts."""

    def __post_init__(self) -> None:
        unknown = [name for name in self.arms if name not in ARMS]
        if unknown or not self.arms or len(set(self.arms)) < len(self.arms):
            raise ConfigError(
                f"arms {','.join(self.arms)!r} cannot be run: each is one of {', '.join(ARMS)}, "
                "once; give --arms full,claa10"
            )
        smallest = min((*self.prompts, self.new_tokens - 1, self.short_tokens - 1), default=0)
        if not self.prompts or smallest < 1:
            raise ConfigError(
                "prompts of 1 token and answers of 2 are the shortest that have times: give "
                "--prompts 10000,32000 --new-tokens 256"
            )
        if not self.loads or any(
            load.at_once < 1 or load.rounds < 1 or load.warm_ups < 0 for load in self.loads
        ):
            raise ConfigError(
                "at once and rounds are at least 1, warm-ups at least 0: give --at-once 1,16 "
                "--rounds 4,2 --warm-ups 1,1"
            )
        if self.short_rounds < 0:
            raise ConfigError("short rounds are 0 or more: give --short-rounds 6")

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt and its answer."""
        return max(self.prompts) + self.new_tokens

    @property
    def most_at_once(self) -> int:
        """Requests that are ever side by side."""
        return max(load.at_once for load in self.loads)


GPU_PLAN = PairPlan()
"""What is run on GPUs unless told otherwise."""

CPU_PLAN = PairPlan(
    prompts=(2_000,),
    new_tokens=32,
    loads=(Load(at_once=1, rounds=2, warm_ups=1), Load(at_once=2, rounds=1, warm_ups=0)),
    short_rounds=1,
)
"""What is run on a CPU: minutes with the embedded model, where the other plan takes hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One turn of every arm."""

    prompt_tokens: int
    """Of each prompt."""
    at_once: int
    """Requests of each arm."""
    new_tokens: int
    """Of each answer."""
    client: str
    """Which client sends it."""
    arms: tuple[str, ...]
    """In turn."""
    counted: bool
    """It is no warm-up."""
    short: bool = False
    """Its answers are short: only first tokens count."""


def rounds_of(plan: PairPlan) -> Iterator[Round]:
    """Every round in turn: arms forwards and backwards, and each of both by either client."""
    for tokens in plan.prompts:
        for load in plan.loads:
            for number in range(-load.warm_ups, load.rounds):
                yield _round(plan, number, tokens=tokens, at_once=load.at_once)
            if load.at_once == 1:
                for number in range(plan.short_rounds):
                    yield _round(plan, number, tokens=tokens, at_once=1, short=True)


def prompt_ids(tokens: int, *, vocab_size: int, seed: int, number: int) -> list[int]:
    """Token ids of one prompt; no two share a beginning.

    Args:
        tokens: length.
        vocab_size: of the model; its first ids, which mark beginnings and ends, are left out.
        seed: of the run.
        number: of the prompt in the run.
    """
    return Random(f"{seed}:{tokens}:{number}").choices(range(16, vocab_size), k=tokens)


def _round(plan: PairPlan, number: int, *, tokens: int, at_once: int, short: bool = False) -> Round:
    forward = number % 2 == 0
    return Round(
        prompt_tokens=tokens,
        at_once=at_once,
        new_tokens=plan.short_tokens if short else plan.new_tokens,
        client=CLIENTS[(number + number // 2) % len(CLIENTS)],
        arms=plan.arms if forward else plan.arms[::-1],
        counted=number >= 0,
        short=short,
    )
