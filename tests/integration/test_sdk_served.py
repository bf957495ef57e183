"""The Python clients before a real gateway and simulated workers."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from gateway.keys.file import write_keys
from gateway.keys.record import KeyRecord, hash_of, new_secret, utc_now
from gateway.sdk import (
    AsyncTandemClient,
    AuthenticationError,
    CancelledError,
    ContextLengthError,
    DeadlineError,
    Delta,
    Event,
    Finished,
    FinishReason,
    GenerateParams,
    Generation,
    HandoffError,
    InvalidRequestError,
    Message,
    ModelNotFoundError,
    Retry,
    TandemClient,
    TandemError,
    Tls,
    Tool,
    UnavailableError,
)
from shared.types.options import Mode
from tests.support.gateway_rig import DEFAULT_ANSWER, Rig, running_rig, until
from tests.support.simulated_workers import FailEvent
from tests.support.tiny_tokenizer import write_tokenizer_folder
from tests.support.tls_files import Authority
from tests.support.tool_templates import TEMPLATES

T = TypeVar("T")
HI = (Message("user", "hi"),)
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
WEATHER = Tool(
    name="weather",
    description="of a city",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}},
)


@pytest.fixture
async def client(rig: Rig) -> AsyncIterator[AsyncTandemClient]:
    async with AsyncTandemClient(rig.gateway.grpc_address) as opened:
        yield opened


async def in_thread(rig: Rig, use: Callable[[TandemClient], T]) -> T:
    """What a thread does with a client of its own."""

    def run() -> T:
        with TandemClient(rig.gateway.grpc_address) as opened:
            return use(opened)

    return await asyncio.to_thread(run)


async def idle(rig: Rig) -> None:
    """Waits until no worker runs anything."""

    async def nothing_runs() -> bool:
        return not any(worker.running for worker in (*rig.prefills, *rig.decodes))

    await until(nothing_runs)


def check_events(rig: Rig, events: list[Event]) -> None:
    deltas = [event for event in events if isinstance(event, Delta)]
    assert "".join(delta.text for delta in deltas) == DEFAULT_ANSWER
    ids = [token_id for delta in deltas for token_id in delta.token_ids]
    assert ids == rig.simulation.tokenizer.encode(DEFAULT_ANSWER)
    assert [len(token.top) for delta in deltas for token in delta.tokens] == [2] * len(ids)
    assert deltas[0].tokens[0].logprob == -0.5
    assert deltas[0].raw.text == deltas[0].text
    end = events[-1]
    assert isinstance(end, Finished)
    assert end.reason is FinishReason.STOP
    assert end.usage.completion_tokens == len(ids) + 1
    report = end.report
    assert report is not None
    assert report.ttft_s > 0
    assert (report.transport, report.pages) == ("grpc", None)
    assert report.kept_tokens < report.prompt_tokens == end.usage.prompt_tokens
    assert set(report.phases_s) >= {"prefill", "decode"}
    assert report.route.startswith("pair: p0 -> d0")


async def test_a_stream_by_a_task_and_by_a_thread(rig: Rig, client: AsyncTandemClient) -> None:
    async with client.stream(HI, temperature=0.0, logprobs=2) as stream:
        check_events(rig, [event async for event in stream])
        assert stream.prompt_tokens > 0
        assert (await stream.result()).text == DEFAULT_ANSWER

    def read(opened: TandemClient) -> list[Event]:
        with opened.stream(HI, temperature=0.0, logprobs=2) as running:
            found = list(running)
            assert running.result().text == DEFAULT_ANSWER
        return found

    check_events(rig, await in_thread(rig, read))


async def test_whole_answers(rig: Rig, client: AsyncTandemClient) -> None:
    ids = rig.simulation.tokenizer.encode("hello there")
    found = [
        await client.generate("hello there", max_tokens=4, n=2),
        await client.generate(ids, max_tokens=4, n=2),
        await in_thread(rig, lambda opened: opened.generate(ids, max_tokens=4, n=2)),
    ]
    for whole in found:
        assert whole.prompt_tokens == len(ids)
        assert [answer.reason for answer in whole.answers] == [FinishReason.LENGTH] * 2
        assert whole.usage.completion_tokens == 8
        assert whole.text == whole.answers[1].text
        assert whole.report.prompt_tokens == len(ids)
    assert len({whole.request_id for whole in found}) == 3


async def test_options_reach_the_workers(rig: Rig, client: AsyncTandemClient) -> None:
    whole = await client.generate(
        HI, mode="prune", keep_rate=0.5, page_budget=12, protect=[(0, 3)], seed=9, trace=True
    )
    options, sampling = rig.simulation.options[-1], rig.simulation.sampling[-1]
    assert (options.mode, options.keep_rate, options.page_budget) == (Mode.PRUNE, 0.5, 12)
    assert [(tokens.start, tokens.end) for tokens in options.protect] == [(0, 3)]
    assert (sampling.seed, sampling.temperature) == (9, 1.0)
    trace = whole.report.trace
    assert trace is not None
    assert trace.ttft_s == whole.report.ttft_s
    assert {bar.hop for bar in trace.waterfall} >= {"gateway", "prefill"}


async def test_request_ids_are_the_callers(rig: Rig, client: AsyncTandemClient) -> None:
    async with client.stream(HI, request_id="mine-7") as stream:
        assert stream.request_id == "mine-7"
        assert (await stream.result()).request_id == "mine-7"
    assert any(call.handoff_id.startswith("mine-7") for call in rig.simulation.calls)


async def test_a_schema_is_enforced_by_a_grammar(rig: Rig, client: AsyncTandemClient) -> None:
    await client.generate(HI, response_format={"type": "object", "properties": {}})
    assert rig.simulation.grammars[-1]
    with pytest.raises(InvalidRequestError) as caught:
        await client.generate(HI, response_format={"not": {}})
    assert caught.value.error_code == "invalid_json_schema"


async def test_a_dialogue_with_a_tool(tmp_path: Path) -> None:
    folder = write_tokenizer_folder(tmp_path / "tokenizer", chat_template=TEMPLATES["hermes"])
    async with running_rig(folder) as rig:
        rig.answer_with(f"Let me see.\n{CALL}")

        def dialogue(opened: TandemClient) -> None:
            first = opened.generate(HI, tools=[WEATHER], tool_choice="auto")
            (answer,) = first.answers
            assert (answer.text, answer.reason) == ("Let me see.", FinishReason.TOOL_CALLS)
            (call,) = answer.tool_calls
            assert (call.name, call.parsed()) == ("weather", {"city": "Bern"})
            turns = (
                *HI,
                answer.message,
                Message("tool", json.dumps("sunny"), tool_call_id=call.id),
            )
            assert opened.generate(turns, tools=[WEATHER]).prompt_tokens > first.prompt_tokens

        await in_thread(rig, dialogue)


@pytest.mark.parametrize("by_thread", [False, True])
async def test_a_stream_that_is_left_frees_the_workers(rig: Rig, by_thread: bool) -> None:
    rig.simulation.token_delay_s = 0.02

    def leave(opened: TandemClient) -> None:
        with opened.stream(HI, ignore_eos=True) as stream:
            for _ in range(3):  # the first comes from prefill
                next(stream)
            stream.close()
            assert list(stream) == []
            with pytest.raises(CancelledError):
                stream.result()

    if by_thread:
        await in_thread(rig, leave)
    else:
        async with (
            AsyncTandemClient(rig.gateway.grpc_address) as opened,
            opened.stream(HI, ignore_eos=True) as stream,
        ):
            for _ in range(3):
                await anext(stream)
            await stream.aclose()
            assert [event async for event in stream] == []
            with pytest.raises(CancelledError):
                await stream.result()
    await rig.simulation.seen("d0", "closed")
    await rig.simulation.seen("d0", "Cancel")
    await idle(rig)


async def test_leaving_the_loop_early_is_enough(rig: Rig, client: AsyncTandemClient) -> None:
    rig.simulation.token_delay_s = 0.02
    async with client.stream(HI, ignore_eos=True) as stream:
        async for event in stream:
            if isinstance(event, Delta) and "world" in event.text:
                break
    await rig.simulation.seen("d0", "Cancel")
    await idle(rig)
    assert (await client.generate(HI)).text == DEFAULT_ANSWER


async def test_a_cancelled_task_frees_the_workers(rig: Rig, client: AsyncTandemClient) -> None:
    rig.prefills[0].plan.at("first_token", 30.0)
    asked = asyncio.create_task(client.generate(HI))
    await rig.simulation.seen("p0", "Prefill")
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await rig.simulation.seen("p0", "Cancel")
    await idle(rig)


@pytest.mark.parametrize("by_thread", [False, True])
async def test_another_one_may_close_it(rig: Rig, by_thread: bool) -> None:
    rig.prefills[0].plan.at("first_token", 30.0)
    if by_thread:
        with TandemClient(rig.gateway.grpc_address) as opened:
            running = opened.stream(HI)
            reading = asyncio.create_task(asyncio.to_thread(list, running))
            await rig.simulation.seen("p0", "Prefill")
            running.close()
            assert await reading == []
    else:
        async with AsyncTandemClient(rig.gateway.grpc_address) as client:
            stream = client.stream(HI)
            waiting = asyncio.create_task(anext(stream, None))
            await rig.simulation.seen("p0", "Prefill")
            await stream.aclose()
            assert await waiting is None
    await rig.simulation.seen("p0", "Cancel")


@pytest.mark.parametrize("by_thread", [False, True])
async def test_a_deadline_ends_the_call_at_both_ends(rig: Rig, by_thread: bool) -> None:
    rig.prefills[0].plan.at("first_token", 30.0)
    async with AsyncTandemClient(rig.gateway.grpc_address, timeout_s=0.4) as client:
        asked: Awaitable[Generation] = (
            in_thread(rig, lambda opened: opened.generate(HI, timeout_s=0.4))
            if by_thread
            else client.generate(HI)
        )
        with pytest.raises(DeadlineError):
            await asked
    await rig.simulation.seen("p0", "Cancel")
    await idle(rig)


REFUSALS: tuple[tuple[GenerateParams, type[TandemError], str, str], ...] = (
    ({"model": "x"}, ModelNotFoundError, "model_not_found", "model"),
    ({"max_tokens": 5000}, ContextLengthError, "context_length_exceeded", "conversation"),
    ({"temperature": 9.0}, InvalidRequestError, "invalid_value", "temperature"),
    ({"page_policy": "x"}, InvalidRequestError, "invalid_value", "tandem.page_policy"),
    ({"tools": [WEATHER]}, InvalidRequestError, "tool_parser_missing", "tools"),
)


async def test_refusals_have_their_class_code_and_field(
    rig: Rig, client: AsyncTandemClient
) -> None:
    with TandemClient(rig.gateway.grpc_address) as other:
        for params, cls, code, param in REFUSALS:
            with pytest.raises(TandemError) as by_task:
                await client.generate(HI, **params)
            with pytest.raises(TandemError) as by_thread:
                await asyncio.to_thread(other.generate, HI, **params)
            for error in (by_task.value, by_thread.value):
                assert (type(error), error.error_code, error.param) == (cls, code, param)


async def test_a_failure_within_the_answer(rig: Rig, client: AsyncTandemClient) -> None:
    rig.decodes[0].plan.at("token:2", FailEvent(HandoffError("page lost")))
    async with client.stream(HI) as stream:
        assert isinstance(await anext(stream), Delta)
        with pytest.raises(HandoffError) as caught:
            await stream.result()
    assert caught.value.error_code == "kv_transfer_failed"


async def test_threads_share_one_client(rig: Rig) -> None:
    eos = rig.simulation.tokenizer.eos_ids[0]
    rig.simulation.answer = lambda prompt: [*prompt, eos]
    prompts = [f"prompt number {i}" for i in range(8)]
    with TandemClient(rig.gateway.grpc_address) as opened:
        found = await asyncio.gather(
            *(asyncio.to_thread(opened.generate, prompt, max_tokens=64) for prompt in prompts)
        )
    assert [whole.text for whole in found] == prompts


async def test_concurrent_streams(rig: Rig, client: AsyncTandemClient) -> None:
    eos = rig.simulation.tokenizer.eos_ids[0]
    rig.simulation.answer = lambda prompt: [*prompt, eos]
    rig.simulation.token_delay_s = 0.002
    prompts = [f"prompt number {i}" for i in range(16)]
    found = await asyncio.gather(*(client.generate(p, max_tokens=64) for p in prompts))
    assert [whole.text for whole in found] == prompts


async def test_readiness(rig: Rig, client: AsyncTandemClient) -> None:
    assert await client.ready()
    assert await in_thread(rig, lambda opened: opened.ready())
    for worker in rig.prefills:
        await worker.stop()

    async def gone() -> bool:
        return not await client.ready()

    await until(gone, timeout_s=20.0)
    with pytest.raises(UnavailableError):
        async with AsyncTandemClient(rig.gateway.grpc_address, retry=Retry(attempts=1)) as other:
            await other.generate(HI)


async def test_tls_and_keys(folder: Path, tmp_path: Path) -> None:
    own = Authority().issue(tmp_path / "own")
    secret = new_secret("user")
    record = KeyRecord(key_id="user", sha256=hash_of(secret), created=utc_now())
    write_keys(tmp_path / "keys.json", {"user": record})
    async with running_rig(
        folder, tls_cert=own.cert, tls_key=own.key, api_keys=tmp_path / "keys.json"
    ) as rig:
        address, tls = rig.gateway.grpc_address, Tls(ca=own.ca)

        def by_thread() -> str:
            with TandemClient(address, api_key=secret, tls=tls) as opened:
                assert opened.ready()
                return opened.generate(HI).text

        assert await asyncio.to_thread(by_thread) == DEFAULT_ANSWER
        async with AsyncTandemClient(address, api_key=secret, tls=tls) as client:
            assert (await client.generate(HI)).text == DEFAULT_ANSWER
        async with AsyncTandemClient(address, tls=tls) as client:
            with pytest.raises(AuthenticationError) as caught:
                await client.generate(HI)
            assert caught.value.error_code == "invalid_api_key"
        async with AsyncTandemClient(address, retry=Retry(attempts=1)) as client:
            with pytest.raises(UnavailableError):
                await client.generate(HI, timeout_s=10.0)
