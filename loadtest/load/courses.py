"""What one arrival asks: a single request, a conversation that grows, or a call and its result.

A course is a generator: it gives turns, takes the exchange that each one became, and ends when
there is nothing more to ask. A turn that fails ends it, since the next one would build on nothing.
"""

import json
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Protocol

from loadtest.load.dialogue import Call, Dialogue, Function, Message
from loadtest.load.exchange import Exchange
from loadtest.load.plan import FollowUp, PlannedRequest
from loadtest.load.prompts import Prompt, PromptMaker

Send = Callable[[Exchange], None]
"""Sends one request and waits for its stream's end."""

_PLACES = ["harbour", "station", "market", "library"]
FUNCTIONS = (
    Function(
        name="opening_hours",
        description="When a place is open.",
        parameters={
            "type": "object",
            "properties": {"place": {"type": "string", "enum": _PLACES}},
            "required": ["place"],
            "additionalProperties": False,
        },
    ),
    Function(
        name="walking_time",
        description="How long it takes to walk from one place to another.",
        parameters={
            "type": "object",
            "properties": {
                "start": {"type": "string", "enum": _PLACES},
                "goal": {"type": "string", "enum": _PLACES},
            },
            "required": ["start", "goal"],
            "additionalProperties": False,
        },
    ),
)
"""Their arguments come from short lists, so that a call has an end under every model."""
_CALL_TOKENS = 256


class Client(Protocol):
    """Makes one request at a time ready; calling the result sends it."""

    def prepared(self, prompt: Prompt, answer_tokens: int) -> Send:
        """A request with a prompt of its own."""

    def prepared_dialogue(self, dialogue: Dialogue, answer_tokens: int) -> Send:
        """A request that continues a conversation; a call ends by itself or at so many tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request of a course."""

    send: Send
    """Asks it."""
    think_s: float = 0.0
    """How long the user thinks before it."""
    must_call: bool = False
    """An answer without a whole call has failed."""


Course = Generator[Turn, Exchange, None]


def course_of(request: PlannedRequest, *, client: Client, prompts: PromptMaker) -> Course:
    """All that an arrival asks, in order."""
    if request.kind.calls:
        return _with_call(request, client, prompts)
    if request.kind.conversation is not None:
        return _conversation(request, client, prompts)
    return _single(request, client, prompts)


def _single(request: PlannedRequest, client: Client, prompts: PromptMaker) -> Course:
    yield Turn(send=client.prepared(prompts.make(request), request.answer_tokens))


def _conversation(request: PlannedRequest, client: Client, prompts: PromptMaker) -> Course:
    """Every answer is part of the next prompt, as the server gave it."""
    messages: list[Message] = []
    first = FollowUp(
        think_s=0.0, prompt_tokens=request.prompt_tokens, answer_tokens=request.answer_tokens
    )
    for number, planned in enumerate((first, *request.follow_ups)):
        words = prompts.words(request, turn=number, tokens=planned.prompt_tokens)
        messages.append(Message(role="user", content=words))
        dialogue = Dialogue(messages=tuple(messages))
        send = client.prepared_dialogue(dialogue, planned.answer_tokens)
        exchange = yield Turn(send=send, think_s=planned.think_s)
        if not exchange.outcome().finished:
            return
        messages.append(Message(role="assistant", content=exchange.answer))


def _with_call(request: PlannedRequest, client: Client, prompts: PromptMaker) -> Course:
    """A question that must be answered by a call, then its result, which is answered in words."""
    words = prompts.words(request, turn=0, tokens=request.prompt_tokens)
    asked = (Message(role="user", content=words),)
    first = Dialogue(messages=asked, functions=FUNCTIONS, must_call=True)
    exchange = yield Turn(send=client.prepared_dialogue(first, _CALL_TOKENS), must_call=True)
    if not exchange.outcome().finished:
        return
    calls = exchange.calls
    said = Message(role="assistant", content=exchange.answer, calls=calls)
    second = Dialogue(messages=(*asked, said, *map(_result, calls)), functions=FUNCTIONS)
    yield Turn(send=client.prepared_dialogue(second, request.answer_tokens))


def _result(call: Call) -> Message:
    """What a function would have answered; it names its arguments, so results differ."""
    result = {"function": call.name, **json.loads(call.arguments), "minutes": len(call.arguments)}
    return Message(role="tool", content=json.dumps(result), call_id=call.id)
