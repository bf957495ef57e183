"""Who reads a prompt: a prefill worker, or the decode worker that will answer it; and why.

A decode worker with a prefill engine of its own saves a short prompt the hop, and serves where no
prefill worker does. What it reads holds up its own answers, so a longer prompt asks the prefill
workers first.
"""

from collections import Counter
from collections.abc import Callable
from enum import StrEnum

from gateway.workers import Pair, Workers
from shared.errors import UnavailableError


class LocalReason(StrEnum):
    """Why a decode worker read the prompt itself; a metric label."""

    SHORT_PROMPT = "short_prompt"
    """Within `short_prompt_tokens`."""
    NO_PREFILL_WORKER = "no_prefill_worker"
    """None is there, or all drain."""
    QUEUE_FULL = "queue_full"
    """No room, or no time, in the line for the prefill workers."""
    PREFILL_REFUSED = "prefill_refused"
    """Every prefill worker refused this prompt, or failed at it."""


class Router:
    """Decides, and counts what was decided.

    Args:
        workers: who is alive, and what they take.
        short_tokens: prompts up to this length do not ask the prefill workers; 0: all do.
        on_local: told the reason of every prompt that a decode worker is to read.
    """

    def __init__(
        self, workers: Workers, *, short_tokens: int, on_local: Callable[[str], None]
    ) -> None:
        self._workers = workers
        self._short_tokens = short_tokens
        self._on_local = on_local
        self._decided: Counter[str] = Counter()

    def ways(self, tokens: int) -> tuple[LocalReason | None, ...]:
        """The ways of a new prompt, the better one first; None is that to the prefill workers."""
        if not self._workers.readers(tokens):
            return (None,)
        if not self._workers.taking_prompts():
            return (LocalReason.NO_PREFILL_WORKER,)
        if tokens <= self._short_tokens:
            return (LocalReason.SHORT_PROMPT, None)
        return (None, LocalReason.QUEUE_FULL)

    def pair(self, tokens: int, *, planned: LocalReason | None, avoid: set[str]) -> Pair:
        """The workers of the next attempt; those in `avoid` only when there are no others.

        Args:
            tokens: of the prompt.
            planned: the way that it came.
            avoid: workers that failed this request.

        Raises:
            UnavailableError: nobody can serve it.
        """
        local = bool(self._workers.readers(tokens, avoid=avoid))
        pool = self._workers.has_alternative(avoid=avoid)
        if planned is not None and (local or not pool):
            return self._locally(tokens, planned, avoid=avoid)
        if local and not pool:
            why = LocalReason.PREFILL_REFUSED if avoid else LocalReason.NO_PREFILL_WORKER
            return self._locally(tokens, why, avoid=avoid)
        try:
            return self._workers.choose(avoid=avoid)
        except UnavailableError as error:
            if not local:
                raise self._explained(error, tokens) from error
        return self._locally(tokens, LocalReason.NO_PREFILL_WORKER, avoid=avoid)

    def has_alternative(self, tokens: int, *, avoid: set[str]) -> bool:
        """Whether somebody else than those in `avoid` could read the prompt."""
        others = self._workers.has_alternative(avoid=avoid)
        return others or bool(self._workers.readers(tokens, avoid=avoid))

    def describe(self) -> dict[str, object]:
        """What it goes by and what came of it, for health answers."""
        return {
            "short_prompt_tokens": self._short_tokens,
            "workers": self._workers.readers(),
            "decisions": {reason.value: self._decided[reason] for reason in LocalReason},
        }

    def _explained(self, error: UnavailableError, tokens: int) -> UnavailableError:
        """A refusal that names the length of prompts that would have been served."""
        longest = self._workers.longest_read()
        if not 0 < longest < tokens:
            return error
        return UnavailableError(
            f"{error.message}; decode workers read prompts of up to {longest} tokens themselves "
            f"and this one has {tokens}: shorten it, or have prefill workers started",
            code=error.error_code,
            retry_after_s=error.retry_after_s,
        )

    def _locally(self, tokens: int, reason: LocalReason, *, avoid: set[str]) -> Pair:
        pair = self._workers.choose_local(tokens, avoid=avoid, why=reason)
        self._decided[reason] += 1
        self._on_local(reason)
        return pair
