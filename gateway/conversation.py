"""A request to go on with a conversation, whichever API it came by."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gateway.planner import AskedAnswer
from gateway.schema.chat import ChatBody, Message
from gateway.schema.conversation import ConversationBody
from gateway.schema.response_input import turns_of
from gateway.schema.response_tools import JsonBySchema, JsonObject, as_choice
from gateway.schema.responses import ResponsesBody
from gateway.schema.structured import ResponseFormat
from gateway.structured.enforcer import ANY_OBJECT

Turns = list[dict[str, Any]]
"""As chat templates read them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What chat template and planner need of it."""

    body: ConversationBody
    """As the client sent it."""
    length: int
    """Its turns, before any work was done for them."""
    turns: Callable[[], Turns]
    """Makes them; raises InvalidRequestError when they cannot be."""
    asked: AskedAnswer
    """What the answer must be."""
    param: str
    """The field that the turns came in."""


def chat_conversation(body: ChatBody) -> Conversation:
    """Of a chat request."""
    schema, param = _chat_schema(body.response_format)
    return Conversation(
        body=body,
        length=len(body.messages),
        turns=lambda: [message.for_template() for message in body.messages],
        asked=AskedAnswer(
            schema=schema,
            schema_param=param,
            tools=tuple(body.tools or ()),
            choice=body.tool_choice,
            several=body.parallel_tool_calls is not False,
            ignore_eos=bool(body.ignore_eos),
            min_tokens=body.min_tokens or 0,
        ),
        param="messages",
    )


def response_conversation(body: ResponsesBody) -> Conversation:
    """Of a request for a response; its instructions are the first turn."""

    def turns() -> Turns:
        rest = turns_of(body.input)
        if body.instructions is None:
            return rest
        return [Message(role="system", content=body.instructions).for_template(), *rest]

    schema, param = _response_schema(body)
    return Conversation(
        body=body,
        length=1 if isinstance(body.input, str) else len(body.input),
        turns=turns,
        asked=AskedAnswer(
            schema=schema,
            schema_param=param,
            tools=tuple(tool.as_tool() for tool in body.tools or ()),
            tool_param="tools.{}",
            strict_by_default=True,
            choice=as_choice(body.tool_choice),
            several=body.parallel_tool_calls is not False,
            ignore_eos=bool(body.ignore_eos),
            min_tokens=body.min_tokens or 0,
        ),
        param="input",
    )


def _chat_schema(given: ResponseFormat | None) -> tuple[dict[str, Any] | None, str]:
    param = "response_format"
    if given is None or given.type == "text":
        return None, param
    if given.json_schema is None or given.type == "json_object":
        return ANY_OBJECT, param
    return given.json_schema.definition, f"{param}.json_schema.schema"


def _response_schema(body: ResponsesBody) -> tuple[dict[str, Any] | None, str]:
    param, given = "text.format", None if body.text is None else body.text.format
    if isinstance(given, JsonBySchema):
        return given.definition, f"{param}.schema"
    return (ANY_OBJECT if isinstance(given, JsonObject) else None), param
