"""Conversations and calls of the load suite: what is asked turn by turn, in both protocols."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import pytest

from loadtest.load.chunks import note_frame
from loadtest.load.courses import FUNCTIONS, Turn, course_of
from loadtest.load.dialogue import Call, Dialogue, Message
from loadtest.load.exchange import Exchange, Ticket
from loadtest.load.outcome import Failure
from loadtest.load.overrides import Overrides
from loadtest.load.plan import PlannedRequest, planned_requests
from loadtest.load.prompts import WORDS, Prompt, PromptMaker, Word
from loadtest.load.rest_dialogue import dialogue_body
from loadtest.load.rpc_dialogue import dialogue_fields
from loadtest.load.settings import Api, LoadSettings
from loadtest.load.turns import turns_of
from loadtest.load.workloads import WORKLOADS, Profile, classes_of
from protos.tandem.v1 import inference_pb2
from shared.errors import ConfigError
from shared.types.options import Mode

MAKER = PromptMaker([Word(f" {word}", (index,)) for index, word in enumerate(WORDS)], seed=2)
CALL = ("call_1", "opening_hours", '{"place": "harbour"}')


class ScriptedClient:
    """Answers every turn with a word of its own, or with a call where one is due."""

    def __init__(
        self, *, call: tuple[str, str, str] = CALL, broken_turn: int | None = None
    ) -> None:
        self.asked: list[Dialogue | Prompt] = []
        self._call = call
        self._broken = broken_turn

    def prepared(self, prompt: Prompt, answer_tokens: int) -> Callable[[Exchange], None]:
        return self._sender(prompt, answer_tokens)

    def prepared_dialogue(
        self, dialogue: Dialogue, answer_tokens: int
    ) -> Callable[[Exchange], None]:
        return self._sender(dialogue, answer_tokens)

    def _sender(self, asked: Dialogue | Prompt, answer_tokens: int) -> Callable[[Exchange], None]:
        turn = len(self.asked)
        self.asked.append(asked)

        def send(exchange: Exchange) -> None:
            exchange.begin()
            if isinstance(asked, Dialogue) and asked.must_call:
                id_, name, arguments = self._call
                exchange.call_part(0, id=id_, name=name, arguments=arguments[:5])
                exchange.call_part(0, id="", name="", arguments=arguments[5:])
            else:
                exchange.text(f"answer {turn}")
            exchange.usage(prompt_tokens=10 * (turn + 1), answer_tokens=answer_tokens)
            if turn != self._broken:
                exchange.finish_reason()
            exchange.whole()
            exchange.end()

        return send


def planned(workload: str) -> PlannedRequest:
    plan = planned_requests(WORKLOADS[workload], classes_of(Profile.CPU), seed=2)
    return next(r for r in islice(plan, 50) if len(r.follow_ups) != 1)


def followed(request: PlannedRequest, client: ScriptedClient) -> list[Exchange]:
    """Every exchange of a course, with a clock that ticks."""
    ticks = iter(range(10_000))
    course = course_of(request, client=client, prompts=MAKER)
    turn: Turn = next(course)
    found: list[Exchange] = []
    while True:
        ticket = Ticket(request, due_s=0.0, turn=len(found), must_call=turn.must_call)
        exchange = Exchange(ticket, lambda: float(next(ticks)))
        turn.send(exchange)
        found.append(exchange)
        try:
            turn = course.send(exchange)
        except StopIteration:
            return found


def test_a_conversation_s_prompt_holds_all_that_was_said() -> None:
    request, client = planned("multi_turn"), ScriptedClient()
    exchanges = followed(request, client)
    assert len(exchanges) == request.num_turns == len(client.asked) >= 3
    for turn, asked in enumerate(client.asked):
        assert isinstance(asked, Dialogue)
        roles = [message.role for message in asked.messages]
        assert roles == ["user", "assistant"] * turn + ["user"]
        said = [message.content for message in asked.messages if message.role == "assistant"]
        assert said == [f"answer {number}" for number in range(turn)]
    last = client.asked[-1]
    assert isinstance(last, Dialogue)
    questions = [message.content for message in last.messages if message.role == "user"]
    sizes = [request.prompt_tokens, *(turn.prompt_tokens for turn in request.follow_ups)]
    assert [len(question.split()) for question in questions] == sizes
    assert len(set(questions)) == len(questions)
    low, high = classes_of(Profile.CPU)["multi_turn"].conversation.think_s  # type: ignore[union-attr]
    assert all(low <= turn.think_s <= high for turn in request.follow_ups)


def test_a_broken_turn_ends_its_conversation() -> None:
    exchanges = followed(planned("multi_turn"), ScriptedClient(broken_turn=1))
    failures = [exchange.outcome().failure for exchange in exchanges]
    assert failures == [None, Failure.NO_FINISH_REASON]


def test_a_call_is_sent_back_with_its_result() -> None:
    request, client = planned("tools"), ScriptedClient()
    exchanges = followed(request, client)
    assert len(exchanges) == request.num_turns == 2
    assert all(exchange.outcome().finished for exchange in exchanges)
    first, second = client.asked
    assert isinstance(first, Dialogue)
    assert isinstance(second, Dialogue)
    assert (first.must_call, second.must_call) == (True, False)
    assert first.functions == second.functions == FUNCTIONS
    user, assistant, tool = second.messages
    assert first.messages == (user,)
    assert assistant.calls == (Call(id=CALL[0], name=CALL[1], arguments=CALL[2]),)
    assert tool.call_id == CALL[0]
    assert json.loads(tool.content)["place"] == "harbour"


@pytest.mark.parametrize(
    ("arguments", "failure"),
    [('{"place": "har', Failure.BAD_CALL), ("[1]", Failure.BAD_CALL), ("{}", None)],
)
def test_a_call_that_is_cut_has_failed(arguments: str, failure: Failure | None) -> None:
    client = ScriptedClient(call=("c", "opening_hours", arguments))
    exchanges = followed(planned("tools"), client)
    assert exchanges[0].outcome().failure == failure
    assert len(exchanges) == (2 if failure is None else 1)


def frame(exchange: Exchange, **delta: Any) -> None:
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    note_frame(orjson.dumps({"choices": [choice]}).decode(), exchange)


def test_calls_are_read_from_the_deltas_of_a_stream() -> None:
    ticks = iter(range(100))
    exchange = Exchange(Ticket(planned("tools"), 0.0, must_call=True), lambda: float(next(ticks)))
    exchange.begin()
    frame(exchange, role="assistant", content=None)
    begun = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}
    frame(exchange, tool_calls=[{"index": 0, **begun}])
    frame(exchange, tool_calls=[{"index": 0, "function": {"arguments": '{"a":'}}])
    frame(exchange, tool_calls=[{"index": 0, "function": {"arguments": "1}"}}])
    exchange.finish_reason()
    exchange.usage(prompt_tokens=3, answer_tokens=5)
    exchange.whole()
    exchange.end()
    assert exchange.calls == (Call(id="c1", name="f", arguments='{"a":1}'),)
    found = exchange.outcome()
    assert (found.ttft_s, found.e2e_s, found.failure) == (1.0, 4.0, None)  # the role is no answer
    silent = Exchange(replace(exchange.ticket), lambda: 0.0)
    silent.text("I would rather not.")
    silent.finish_reason()
    silent.usage(prompt_tokens=3, answer_tokens=5)
    silent.whole()
    silent.end()
    assert silent.outcome().failure == Failure.NO_CALL


def test_both_protocols_carry_the_same_conversation() -> None:
    call = Call(id="c1", name="opening_hours", arguments='{"place": "market"}')
    messages = (
        Message(role="user", content="When?"),
        Message(role="assistant", content="", calls=(call,)),
        Message(role="tool", content="{}", call_id="c1"),
    )
    for must_call in (True, False):
        dialogue = Dialogue(messages=messages, functions=FUNCTIONS, must_call=must_call)
        body = dialogue_body(dialogue)
        message = inference_pb2.GenerateRequest(**dialogue_fields(dialogue))
        assert body["ignore_eos"] is message.ignore_eos is not must_call
        assert body["parallel_tool_calls"] is message.parallel_tool_calls is False
        mode = {"required": inference_pb2.TOOL_MODE_REQUIRED, "none": inference_pb2.TOOL_MODE_NONE}
        assert mode[body["tool_choice"]] == message.tool_choice.mode
        for ours, theirs in zip(body["tools"], message.tools, strict=True):
            function = ours["function"]
            assert function["name"] == theirs.function.name
            assert function["parameters"] == json.loads(theirs.function.parameters)
        for said, heard in zip(body["messages"], message.conversation.messages, strict=True):
            assert said["role"] == heard.role
            assert (said["content"] or "") == heard.content
            assert said.get("tool_call_id", "") == heard.tool_call_id
            calls = [(each["id"], each["function"]) for each in said.get("tool_calls", ())]
            assert calls == [
                (each.id, {"name": each.function.name, "arguments": each.function.arguments})
                for each in heard.tool_calls
            ]
    plain = Dialogue(messages=messages[:1])
    assert set(dialogue_body(plain)) == {"messages", "ignore_eos"}


def test_turns_show_how_prompts_grow() -> None:
    outcomes = [each.outcome() for each in followed(planned("multi_turn"), ScriptedClient())]
    rows = turns_of(outcomes)
    assert [row["turn"] for row in rows] == list(range(len(outcomes)))
    assert [row["prompt_tokens"] for row in rows] == [10 * (n + 1) for n in range(len(outcomes))]
    assert all(row["ttft"]["count"] == 1 for row in rows)
    assert turns_of(outcomes[:1]) == []


def test_conversations_need_messages() -> None:
    for workload in ("multi_turn", "tools"):
        with pytest.raises(ConfigError, match="give --api chat"):
            LoadSettings(host="http://h", out=Path("o"), workload=workload)
        LoadSettings(host="http://h", out=Path("o"), workload=workload, api=Api.CHAT)


def test_overrides_hold_what_is_set_and_refuse_what_a_gateway_would() -> None:
    assert Overrides().to_json() == {}
    given = Overrides(mode=Mode.PRUNE, keep_rate=0.5, page_budget=8)
    assert given.to_json() == {"mode": "prune", "keep_rate": 0.5, "page_budget": 8}
    for each in (given, Overrides()):
        assert Overrides.from_json(each.to_json()) == each
    assert (given.options.mode, given.options.keep_rate) == (Mode.PRUNE, 0.5)
    with pytest.raises(ConfigError, match="keep_rate"):
        Overrides(keep_rate=1.5)
    with pytest.raises(ConfigError, match="page_budget"):
        Overrides(page_budget=2)
