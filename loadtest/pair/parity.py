"""Whether a pair answers with the same tokens as a slow one on a CPU.

Both get the same prompts over gRPC and decode greedily. Answers are compared up to the first step
at which the slow pair's two best tokens are nearly level: what rounding decides there says nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pydoc_data.topics import topics
from typing import Any

from gateway.sdk.client import TandemClient
from loadtest.pair.clients import Question, grpc_params
from loadtest.pair.plan import ARMS
from shared.types.sampling import SampledToken

LEVEL = 1e-3
"""Natural-log probabilities of the two best tokens closer than this are level."""

_CHARACTERS = 6_000
_NEW_TOKENS = 48
_TOPICS = ("debugger", "import", "operator-summary")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityPlan:
    """What is compared."""

    arms: tuple[str, ...]
    """Names of arms."""
    characters: int = _CHARACTERS
    """Of each prompt, texts of Python's own documentation."""
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


def compare(
    plan: ParityPlan, *, slow: str, fast: str, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Asks both pairs and compares, JSON-ready: `equal`, and by arm the steps that were compared.

    Args:
        plan: what to compare.
        slow: host:port of the gRPC server of the pair that is right.
        fast: of the one in question.
        progress: told of every answer.

    Raises:
        TandemError: a request failed.
    """
    found: dict[str, Any] = {}
    with TandemClient(slow, timeout_s=600.0) as right, TandemClient(fast, timeout_s=600.0) as other:
        for arm in plan.arms:
            rows = [_row(plan, arm, topic, right=right, other=other) for topic in _TOPICS]
            found[arm] = {
                "answers": len(rows),
                "steps_compared": sum(row["compared"] for row in rows),
                "steps": sum(row["steps"] for row in rows),
                "equal": all(row["equal"] for row in rows),
                "transports": sorted({row["transport"] for row in rows}),
                "differences": [row for row in rows if not row["equal"]],
            }
            progress(
                f"{ARMS[arm].title}: {found[arm]['steps_compared']} steps "
                f"{'equal' if found[arm]['equal'] else 'NOT ALL EQUAL'}"
            )
    return {"equal": all(arm["equal"] for arm in found.values()), "level": LEVEL, "arms": found}


def _row(
    plan: ParityPlan, arm: str, topic: str, *, right: TandemClient, other: TandemClient
) -> Mapping[str, Any]:
    text = topics[topic][: plan.characters]
    params = grpc_params(Question(token_ids=(), new_tokens=plan.new_tokens, arm=ARMS[arm]))
    params["logprobs"] = 2
    wanted = right.generate(text, **params)
    given = other.generate(text, **params)
    compared, equal = matching(wanted.answers[0].tokens, given.answers[0].tokens)
    return {
        "topic": topic,
        "prompt_tokens": wanted.prompt_tokens,
        "kept_tokens": [each.report.kept_tokens for each in (wanted, given)],
        "steps": len(wanted.answers[0].tokens),
        "compared": compared,
        "equal": equal,
        "transport": given.report.transport,
    }


def matching(wanted: Sequence[SampledToken], given: Sequence[SampledToken]) -> tuple[int, bool]:
    """Steps that could be compared, and whether all of them are equal.

    Args:
        wanted: the right answer, with the two best tokens of each step.
        given: the answer in question.
    """
    for step, (right, other) in enumerate(zip(wanted, given, strict=False)):
        if right.token_id == other.token_id:
            continue
        best, second = right.top[0][1], right.top[1][1]
        return step, best - second < LEVEL
    return min(len(wanted), len(given)), len(wanted) == len(given)
