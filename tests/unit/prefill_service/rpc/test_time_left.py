"""A prompt enters the queue with the time that its call has left then."""

from types import SimpleNamespace

import pytest

from prefill_service.engine.job import PrefillJob, PromptRequest
from prefill_service.rpc.requests import ModelLimits
from prefill_service.rpc.servicer import PrefillServicer
from shared.errors import OverloadedError
from shared.types.methods import SparsityParams
from tests.support.prefill_worker import prompt_ids, prompt_request

LIMITS = ModelLimits(
    vocab_size=512, max_model_len=128, num_layers=6, sparsity=SparsityParams(full_layers=(0, 1))
)
TARGET = SimpleNamespace(worker_id="d0", address="10.0.0.7:8201")


class Call:
    """A call's context, and a compiler that uses up three of its five seconds."""

    left_s = 5.0

    def time_remaining(self) -> float:
        return self.left_s

    async def compile(self, _grammar: str) -> object:
        self.left_s = 2.0
        return object()


class FullEngine:
    """Remembers what it is asked for, and refuses it."""

    def submit(self, request: PromptRequest) -> PrefillJob:
        self.request = request
        raise OverloadedError("full", retry_after_s=1.0)


@pytest.mark.parametrize(("grammar", "left_s"), [("", 5.0), ("{}", 2.0)])
async def test_compiling_a_grammar_counts(grammar: str, left_s: float) -> None:
    engine, call = FullEngine(), Call()
    servicer = PrefillServicer(engine, limits=LIMITS, grammars=call)  # type: ignore[arg-type]
    message = prompt_request(prompt_ids(8), [TARGET], grammar=grammar, deadline_ms=9_000)  # type: ignore[list-item]
    with pytest.raises(OverloadedError):
        await anext(servicer.Prefill(message, call))  # type: ignore[arg-type]
    assert engine.request.deadline_s == left_s
    assert (engine.request.matcher is None) is (not grammar)
