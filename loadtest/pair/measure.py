"""Runs the rounds of a plan against one gateway, arms in turn."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count

from loadtest.pair.clients import PairClient, Question, Timed
from loadtest.pair.plan import ARMS, PairPlan, Round, prompt_ids, rounds_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Volley:
    """The requests of one arm in one round."""

    turn: Round
    """The round."""
    arm: str
    """Name of the arm."""
    wall_s: float
    """First request sent to last answer complete."""
    answers: tuple[Timed, ...]
    """As they were sent."""


class PairBench:
    """Asks a pair.

    Args:
        plan: what to ask.
        clients: by name.
        vocab_size: of the model.
        progress: told of every volley.
    """

    def __init__(
        self,
        plan: PairPlan,
        *,
        clients: Mapping[str, PairClient],
        vocab_size: int,
        progress: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self._clients = clients
        self._vocab_size = vocab_size
        self._progress = progress
        self._numbers = count()

    def run(self) -> list[Volley]:
        """Every volley that counts.

        Raises:
            TandemError: a request failed; nothing is measured any more.
        """
        volleys = []
        turns = list(rounds_of(self._plan))
        total = sum(len(turn.arms) for turn in turns)
        done = count(1)
        with ThreadPoolExecutor(self._plan.most_at_once, thread_name_prefix="ask") as pool:
            for turn in turns:
                for arm in turn.arms:
                    found = self._volley(turn, arm, pool=pool)
                    self._progress(f"{next(done)} of {total}: {_told(found)}")
                    volleys += [found] if turn.counted else []
        return volleys

    def traced(self, arm: str, *, tokens: int) -> Timed:
        """One more request, whose report tells when everything was.

        Args:
            arm: its name.
            tokens: of the prompt.
        """
        client = next(iter(self._clients.values()))
        return client.ask(
            self._question(arm, tokens=tokens, new_tokens=self._plan.new_tokens, trace=True)
        )

    def _volley(self, turn: Round, arm: str, *, pool: ThreadPoolExecutor) -> Volley:
        questions = [
            self._question(arm, tokens=turn.prompt_tokens, new_tokens=turn.new_tokens)
            for _ in range(turn.at_once)
        ]
        client = self._clients[turn.client]
        began = time.perf_counter()
        answers = tuple(pool.map(client.ask, questions))
        wall_s = time.perf_counter() - began
        return Volley(turn=turn, arm=arm, wall_s=wall_s, answers=answers)

    def _question(self, arm: str, *, tokens: int, new_tokens: int, trace: bool = False) -> Question:
        ids = prompt_ids(
            tokens, vocab_size=self._vocab_size, seed=self._plan.seed, number=next(self._numbers)
        )
        return Question(token_ids=ids, new_tokens=new_tokens, arm=ARMS[arm], trace=trace)


def _told(volley: Volley) -> str:
    turn, first = volley.turn, volley.answers[0]
    return (
        f"{turn.prompt_tokens} tokens, {turn.at_once} at once, {volley.arm} by {turn.client}"
        f"{'' if turn.counted else ', to warm up'}: first token after {first.ttft_s:.3f} s, "
        f"all after {volley.wall_s:.2f} s, over {first.report['transport']}"
    )
