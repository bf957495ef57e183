"""Prompts for unit tests of the prefill engine."""

import itertools
from typing import Any

from prefill_service.engine.job import PrefillJob, PromptRequest, Target
from shared.types.handoff import HandoffKey
from shared.types.options import RequestOptions
from shared.types.sampling import SamplingParams, StopConditions

_ids = itertools.count(1)


def request_of(tokens: int, **fields: Any) -> PromptRequest:
    """A request of `tokens` tokens with a fresh handoff; `fields` override."""
    values: dict[str, Any] = {
        "key": HandoffKey(f"job{next(_ids)}"),
        "token_ids": tuple(range(tokens)),
        "sampling": SamplingParams(temperature=0.0),
        "stop": StopConditions(max_tokens=4),
        "options": RequestOptions(),
        "targets": (Target("d0", "127.0.0.1:1"),),
    }
    return PromptRequest(**(values | fields))


def job_of(tokens: int, **fields: Any) -> PrefillJob:
    """A job of such a request."""
    return PrefillJob(request_of(tokens, **fields))
