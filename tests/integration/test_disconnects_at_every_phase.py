"""Clients that leave, in every phase and in every way, on a gateway with both real workers.

What runs while a client leaves is held in the middle of one block of its prefill or one step of its
decode. That block or step is the last one: counted, not timed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from gateway import intake
from protos.tandem.v1 import inference_pb2, inference_pb2_grpc
from shared.tokenizer.tokenizer import Tokenizer
from tests.support.decode_server import assert_idle, holder, write_profile
from tests.support.full_stack import Stack, running_stack
from tests.support.gates import Gate, GatedBlocks, GatedSteps
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = "The quick brown fox jumps over the lazy dog. " * 8
LONG_ANSWER: Any = {
    "type": "json_schema",
    "json_schema": {
        "name": "numbers",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"of": {"type": "array", "minItems": 60, "items": {"type": "integer"}}},
            "required": ["of"],
            "additionalProperties": False,
        },
    },
}
REST: dict[str, dict[str, Any]] = {
    "stream": {"stream": True, "ignore_eos": True},
    "whole": {"ignore_eos": True},
    "three answers": {"stream": True, "ignore_eos": True, "n": 3},
    "grammar": {"response_format": LONG_ANSWER},
}
KINDS = (*REST, "grpc")
ANSWERS = {"three answers": 3}


@dataclass
class Hall:
    """The running parts, with a gate in each engine."""

    stack: Stack
    blocks: GatedBlocks
    steps: GatedSteps

    def ask(self, kind: str = "stream", *, tokens: int = 60) -> "asyncio.Task[None]":
        """A client; cancelling it closes its connection or its call."""
        work = self._call(tokens) if kind == "grpc" else self._post(tokens, REST[kind])
        return asyncio.create_task(work)

    def ask_little(self) -> "asyncio.Task[None]":
        """A client that stays, and is soon done."""
        return self.ask(tokens=4)

    async def _post(self, tokens: int, fields: dict[str, Any]) -> None:
        messages = [{"role": "user", "content": PROMPT}]
        body = {"messages": messages, "max_tokens": tokens, **fields}
        async with httpx.AsyncClient(base_url=self.stack.url, timeout=60) as http:
            response = await http.post("/chat/completions", json=body)
            assert response.status_code == 200, response.text

    async def _call(self, tokens: int) -> None:
        request = inference_pb2.GenerateRequest(ignore_eos=True)
        request.conversation.messages.add(role="user", content=PROMPT)
        request.stop.max_tokens = tokens
        stub = inference_pb2_grpc.InferenceServiceStub(self.stack.channel)
        call: Any = stub.Generate(request, timeout=60)
        try:
            async for _ in call:
                pass
        finally:
            call.cancel()

    @property
    def commands(self) -> int:
        """What the decode engine will do before its next step."""
        return len(self.stack.decode.core.worker.engine._commands)

    @property
    def answers(self) -> int:
        """Answers that hold pages."""
        return self.stack.decode.core.worker.num_generations

    async def nothing_left(self) -> None:
        """Pages, slots, leases and counters of all three are where they began."""
        gateway, decode = self.stack.gateway, self.stack.decode.core.worker
        pipeline, lane = gateway._pipeline, gateway._entrance.pool
        admission, line = lane.admission, lane.dispatcher
        assert pipeline is not None
        await until(lambda: pipeline.running.count == 0 and not gateway._background._tasks)
        assert (admission.queued_requests, admission.queued_tokens) == (0, 0)
        assert (line.sent_prompts, line.sent_tokens, line.waiting) == (0, 0, 0)
        await self.stack.prefill.expect_idle()
        await until(lambda: self.stack.prefill.engine.load().held_handoffs == 0)
        await until(lambda: decode.table.idle and decode.intake.num_tasks == 0)
        assert_idle(self.stack.decode)


async def gone(client: "asyncio.Task[None]") -> None:
    """The client leaves."""
    client.cancel()
    await asyncio.gather(client, return_exceptions=True)


@asynccontextmanager
async def held(
    gate: Gate, *at: int, client: Callable[[], "asyncio.Task[None]"]
) -> AsyncIterator["asyncio.Task[None]"]:
    """A client whose work stands still in the pieces `at`; it goes on at the end."""
    gate.arm(*at)
    running = client()
    try:
        await until(lambda: gate.reached)
        yield running
    finally:
        gate.open_for_good()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hall(
    tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Hall]:
    profile = write_profile(tmp_path_factory.mktemp("profile"))
    async with running_stack(tiny_model_dir, profile, worker_prompt_tokens=64) as stack:
        parts, engine = stack.prefill.app._parts, stack.decode.core.worker.engine
        assert parts is not None
        blocks = GatedBlocks(parts.compute._runner)
        steps = GatedSteps(engine._runner)
        parts.compute._runner = blocks  # type: ignore[assignment]
        engine._runner = steps
        yield Hall(stack, blocks, steps)


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def _clean(hall: Hall) -> AsyncIterator[None]:
    hall.blocks.gate.arm(0)
    hall.steps.gate.arm(0)
    hall.blocks.runs = 0
    hall.steps.stepped.clear()
    yield
    await hall.nothing_left()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize"])
async def test_while_it_sends_its_body(hall: Hall, path: str, caplog: Any) -> None:
    host, _, port = hall.stack.gateway.rest_address.partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\n"
    writer.write(head.encode() + b'{"prompt": "hi')
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    await hall.nothing_left()
    assert hall.blocks.runs == 0
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("kind", KINDS)
async def test_while_its_prompt_is_tokenized(
    hall: Hall, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, inner = Gate(), Tokenizer.encode

    def gated(*arguments: Any, **settings: Any) -> Any:
        gate.piece()
        return inner(*arguments, **settings)

    monkeypatch.setattr(intake, "_AT_ONCE_CHARS", 0)  # in a thread, as a long one is
    monkeypatch.setattr(Tokenizer, "encode", gated)
    async with held(gate, 1, client=lambda: hall.ask(kind)) as client:
        await gone(client)
    await hall.nothing_left()
    assert hall.blocks.gate.done == 0, "not one block of its prompt was computed"
    assert not hall.steps.stepped


@pytest.mark.parametrize("kind", KINDS)
async def test_in_the_gateways_queue(hall: Hall, kind: str) -> None:
    async with held(hall.blocks.gate, 1, client=hall.ask_little) as first:
        second = hall.ask_little()
        await hall.stack.prefill.wait_load(queued_requests=1)
        third = hall.ask(kind)
        await until(lambda: hall.stack.gateway._entrance.pool.dispatcher.waiting == 1)
        await gone(third)
        await until(lambda: hall.stack.gateway._entrance.pool.dispatcher.waiting == 0)
    await asyncio.gather(first, second)
    assert hall.blocks.runs == 2, "the workers never heard of it"


@pytest.mark.parametrize("kind", KINDS)
async def test_in_the_prefill_queue(hall: Hall, kind: str) -> None:
    async with held(hall.blocks.gate, 1, client=hall.ask_little) as first:
        second = hall.ask(kind)
        await hall.stack.prefill.wait_load(queued_requests=1)
        await gone(second)
        await hall.stack.prefill.wait_load(queued_requests=0, queued_tokens=0)
    await first
    assert hall.blocks.runs == 1, "its prompt cost no compute"


@pytest.mark.parametrize("block", [1, 13])
@pytest.mark.parametrize("kind", KINDS)
async def test_between_two_blocks_of_its_prefill(hall: Hall, kind: str, block: int) -> None:
    async with held(hall.blocks.gate, block, client=lambda: hall.ask(kind)) as client:
        (job,) = hall.stack.prefill.engine._jobs.values()
        await gone(client)
        await until(job.stopping)
    await hall.nothing_left()
    assert hall.blocks.gate.done == block, "the block that ran was the last one"
    assert not hall.steps.stepped


@pytest.mark.parametrize("kind", KINDS)
async def test_while_its_kv_is_handed_over(hall: Hall, kind: str) -> None:
    worker, prefill = hall.stack.decode.core.worker, hall.stack.prefill
    hold, waiting = holder()
    blocked = asyncio.create_task(worker.engine.between_steps(waiting))
    client = hall.ask(kind)
    try:
        await until(lambda: worker.intake.num_tasks == 1)
        await gone(client)
        await prefill.wait_load(running_requests=0)
    finally:
        hold.set()
    await blocked
    await hall.nothing_left()
    assert not hall.steps.stepped, "it never took part in a step"


@pytest.mark.parametrize("kind", KINDS)
async def test_before_its_first_step(hall: Hall, kind: str) -> None:
    """It joins and leaves while a step of another answer runs."""
    answers = ANSWERS.get(kind, 1)
    copies = 2 if answers > 1 else 1  # of its KV, each of them between two steps
    pieces = range(1, copies + 2)
    async with held(hall.steps.gate, *pieces, client=hall.ask_little) as first:
        (ahead,) = set(hall.steps.stepped)
        second = hall.ask(kind)
        for _ in range(copies):
            await until(lambda: hall.commands > 0)
            hall.steps.gate.open()
            await until(lambda: hall.steps.gate.reached)
        await until(lambda: hall.answers == 1 + answers)
        await gone(second)
        await until(lambda: hall.commands >= 2 * answers)  # each of its answers joins and ends
    await first
    assert set(hall.steps.stepped) == {ahead}, "it never took part in a step"


@pytest.mark.parametrize("step", [1, 5])
@pytest.mark.parametrize("kind", KINDS)
async def test_within_a_step_of_its_decode(hall: Hall, kind: str, step: int) -> None:
    async with held(hall.steps.gate, step, client=lambda: hall.ask(kind)) as client:
        await gone(client)
        await until(lambda: hall.commands >= ANSWERS.get(kind, 1))
    await hall.nothing_left()
    assert hall.steps.gate.done == step, "the step that ran was the last one"


@pytest.mark.parametrize("kind", KINDS)
async def test_after_its_answer(hall: Hall, kind: str) -> None:
    await hall.ask(kind, tokens=4)
    await hall.nothing_left()
    assert len(set(hall.steps.stepped)) == 1
