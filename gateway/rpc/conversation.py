"""A conversation of a Generate call, as chat templates read it."""

from typing import Any

from gateway.schema.tools import CalledFunction
from protos.tandem.v1 import inference_pb2
from shared.errors import InvalidRequestError


def turns_of(conversation: inference_pb2.Conversation) -> list[dict[str, Any]]:
    """Its turns, oldest first.

    Raises:
        InvalidRequestError: a tool call of an earlier turn names no function.
    """
    return [_turn(message, index) for index, message in enumerate(conversation.messages)]


def _turn(message: inference_pb2.ChatMessage, index: int) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name:
        turn["name"] = message.name
    if message.tool_calls:
        where = f"conversation.messages.{index}.tool_calls"
        turn["tool_calls"] = [
            _call(call, f"{where}.{place}") for place, call in enumerate(message.tool_calls)
        ]
    if message.tool_call_id:
        turn["tool_call_id"] = message.tool_call_id
    return turn


def _call(call: inference_pb2.ToolCall, where: str) -> dict[str, Any]:
    if not call.function.name:
        raise InvalidRequestError(
            f"{where} names no function; send the calls of the model's turn as they came",
            param=f"{where}.function.name",
        )
    called = CalledFunction(name=call.function.name, arguments=call.function.arguments)
    named = {"id": call.id} if call.id else {}
    function = {"name": called.name, "arguments": called.parsed()}
    return {**named, "type": "function", "function": function}
