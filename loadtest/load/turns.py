"""Conversations turn by turn: the prompt grows, and the time to first text with it."""

import statistics
from collections.abc import Sequence
from typing import Any

from loadtest.load.histogram import Histogram
from loadtest.load.outcome import Outcome


def turns_of(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """One row a turn of a class's conversations, JSON-ready; empty where there is one turn only.

    `prompt_tokens` is the mean of finished requests, by the server's usage, None without one.
    """
    numbers = sorted({outcome.turn for outcome in outcomes})
    if len(numbers) < 2:  # noqa: PLR2004  several turns
        return []
    return [_row(number, [o for o in outcomes if o.turn == number]) for number in numbers]


def _row(turn: int, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    finished = [o for o in outcomes if o.finished]
    tokens = [o.prompt_tokens for o in finished]
    return {
        "turn": turn,
        "offered": len(outcomes),
        "finished": len(finished),
        "prompt_tokens": statistics.mean(tokens) if tokens else None,
        "ttft": Histogram(o.ttft_s for o in finished if o.ttft_s is not None).summary(),
    }
