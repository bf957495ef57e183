"""`input` of a response: text, or items that become the turns of a conversation."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field

from gateway.schema.chat import Message
from gateway.schema.content import TextContent
from gateway.schema.forms import FORM, form, type_of
from gateway.schema.generation import Body
from gateway.schema.tools import CalledFunction, ToolCall
from shared.errors import InvalidRequestError

_MESSAGE = "message"
_KNOWN = (_MESSAGE, "function_call", "function_call_output")


class MessageItem(Body):
    """A turn; one of the model's own is sent back as it came."""

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: TextContent


class FunctionCallItem(Body):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(min_length=1)]
    arguments: str


class FunctionOutputItem(Body):
    """What the called function gave."""

    type: Literal["function_call_output"]
    call_id: Annotated[str, Field(min_length=1)]
    output: TextContent


def _item_form(value: object) -> str | None:
    """An item without a type is a message."""
    return type_of(value) or FORM + _MESSAGE


def _known_item(value: object) -> object:
    """One message for everything that is no item of ours, under its own name."""
    if not isinstance(value, dict):
        return value
    kind = value.get("type")
    if kind == "item_reference" or (kind is None and "id" in value and "role" not in value):
        raise ValueError(
            "this is a reference to a stored item, but this server stores nothing; send the item"
        )
    if kind is not None and kind not in _KNOWN:
        raise ValueError(
            f"items of the type {str(kind)[:64]!r} are not supported by this server; send "
            "message, function_call and function_call_output items"
        )
    return value


InputItem = Annotated[
    Annotated[MessageItem, form(_MESSAGE)]
    | Annotated[FunctionCallItem, form("function_call")]
    | Annotated[FunctionOutputItem, form("function_call_output")],
    Discriminator(_item_form),
    BeforeValidator(_known_item),
]
"""What stateless requests are made of."""


def _input_form(value: object) -> str | None:
    if isinstance(value, str):
        return FORM + "text"
    return FORM + "items" if isinstance(value, list) else None


Input = Annotated[
    Annotated[str, form("text")]
    | Annotated[Annotated[list[InputItem], Field(min_length=1)], form("items")],
    Discriminator(
        _input_form,
        custom_error_type="input",
        custom_error_message="Should be a string or a list of items",
    ),
]
"""A user's turn, or a conversation."""


def turns_of(
    given: str | Sequence[MessageItem | FunctionCallItem | FunctionOutputItem],
) -> list[dict[str, Any]]:
    """The turns as chat templates read them; calls belong to the assistant's turn before them.

    Raises:
        InvalidRequestError: an output without its call.
    """
    if isinstance(given, str):
        return [Message(role="user", content=given).for_template()]
    return [message.for_template() for message in _messages(given)]


def _messages(
    items: Sequence[MessageItem | FunctionCallItem | FunctionOutputItem],
) -> Iterator[Message]:
    called: set[str] = set()
    assistant: Message | None = None
    for index, item in enumerate(items):
        if isinstance(item, FunctionCallItem):
            called.add(item.call_id)
            assistant = assistant or Message(role="assistant")
            assistant.tool_calls = [*(assistant.tool_calls or ()), _call_of(item)]
            continue
        if assistant is not None:
            yield assistant
            assistant = None
        if isinstance(item, FunctionOutputItem):
            _check_called(item, called, param=f"input.{index}.call_id")
            yield Message(role="tool", content=item.output, tool_call_id=item.call_id)
        elif item.role == "assistant":
            assistant = Message(role="assistant", content=item.content)
        else:
            yield Message(role=item.role, content=item.content)
    if assistant is not None:
        yield assistant


def _call_of(item: FunctionCallItem) -> ToolCall:
    function = CalledFunction(name=item.name, arguments=item.arguments)
    return ToolCall(id=item.call_id, function=function)


def _check_called(item: FunctionOutputItem, called: set[str], *, param: str) -> None:
    if item.call_id not in called:
        raise InvalidRequestError(
            f"no function_call before this output has the call_id {item.call_id[:100]!r}; this "
            "server stores nothing, so send the call as well",
            param=param,
        )
