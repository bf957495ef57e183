"""Greedy answers of a pair, to hold beside those of a slow one on a CPU.

Both get the same prompts over gRPC: three texts of several hundred to 2,000 tokens, with floors low
enough that every arm keeps the share that it names. `agreement.py` says what the answers come to.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pydoc_data.topics import topics

from gateway.sdk.client import TandemClient
from gateway.sdk.params import GenerateParams
from loadtest.pair.clients import Question, grpc_params
from loadtest.pair.plan import ARMS
from shared.types.sampling import SampledToken

CANDIDATES = 5
"""Best tokens whose probabilities come with each step."""

_CHARACTERS = 7_500
_NEW_TOKENS = 24
_MIN_KEEP = 16
"""Floor of the kept count; that of profiles would make 10 and 20 % of these prompts one number."""
_TOPICS = ("import", "debugger", "formatstrings")
"""Chapters of Python's own documentation; later ones give longer prompts."""
_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityPlan:
    """What is compared."""

    arms: tuple[str, ...]
    """Names of arms."""
    characters: int = _CHARACTERS
    """Of the longest prompt; the others have one and two thirds."""
    new_tokens: int = _NEW_TOKENS
    """Of each answer."""

    @classmethod
    def within(cls, positions: int, *, arms: tuple[str, ...]) -> "ParityPlan":
        """A plan whose prompts fit a context even where every character is a token.

        Args:
            positions: of the model.
            arms: names of arms.
        """
        return cls(arms=arms, characters=min(_CHARACTERS, positions - _NEW_TOKENS - 1))

    @property
    def answers(self) -> int:
        """Answers of each pair."""
        return len(self.arms) * len(_TOPICS)

    def prompts(self) -> dict[str, str]:
        """Texts by topic."""
        cuts = {name: self.characters * (i + 1) // len(_TOPICS) for i, name in enumerate(_TOPICS)}
        return {name: topics[name][:cut] for name, cut in cuts.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One greedy answer."""

    arm: str
    """Name of the arm."""
    topic: str
    """Names the prompt."""
    prompt_tokens: int
    """Tokens of the prompt."""
    tokens: Sequence[SampledToken]
    """The answer, with the best candidates of each step."""
    kept: frozenset[int] | None
    """Positions that the pruned layers hold; None where nothing was pruned or told."""
    transport: str
    """What moved the KV."""


def ask_all(plan: ParityPlan, address: str, *, progress: Callable[[str], None]) -> list[Answer]:
    """Asks a pair for every answer of a plan, one at a time.

    Args:
        plan: what is asked.
        address: host:port of its gRPC server.
        progress: told of every answer.

    Raises:
        TandemError: a request failed.
    """
    answers: list[Answer] = []
    with TandemClient(address, timeout_s=_TIMEOUT_S) as client:
        for arm in plan.arms:
            for topic, text in plan.prompts().items():
                answers.append(_answer(client, arm, topic, text=text, new_tokens=plan.new_tokens))
                progress(
                    f"answer {len(answers)} of {plan.answers}: {ARMS[arm].title}, "
                    f"{answers[-1].prompt_tokens:,} tokens"
                )
    return answers


def _answer(client: TandemClient, arm: str, topic: str, *, text: str, new_tokens: int) -> Answer:
    params = grpc_params(Question(token_ids=(), new_tokens=new_tokens, arm=ARMS[arm]))
    params["logprobs"] = CANDIDATES
    if ARMS[arm].keep_rate is not None:
        params["min_keep"] = _MIN_KEEP
    found = client.generate(text, **params)
    return Answer(
        arm=arm,
        topic=topic,
        prompt_tokens=found.prompt_tokens,
        tokens=found.answers[0].tokens,
        kept=_kept(client, text, params) if ARMS[arm].mode == "prune" else None,
        transport=found.report.transport,
    )


def _kept(client: TandemClient, text: str, params: GenerateParams) -> frozenset[int] | None:
    """What is kept of a prompt, by a request of its own: a traced answer takes other paths."""
    short = params.copy()
    short["max_tokens"], short["trace"] = 2, True
    trace = client.generate(text, **short).report.trace
    prompt = None if trace is None else trace.prompt
    if prompt is None:
        return None
    pruned = min(prompt.layouts, key=lambda layout: layout.kept_tokens)
    if pruned.spans is None or pruned.kept_tokens == prompt.prompt_tokens:
        return None
    return frozenset(at for start, end in pruned.spans for at in range(start, end))
