"""A conversation as fields of `GenerateRequest`."""

import json
from typing import Any

from loadtest.load.dialogue import Dialogue, Function, Message
from protos.tandem.v1 import inference_pb2


def dialogue_fields(dialogue: Dialogue) -> dict[str, Any]:
    """The fields of a request that say what is asked.

    A call is ended by its grammar, which ignoring end-of-text would contradict.
    """
    fields: dict[str, Any] = {
        "conversation": inference_pb2.Conversation(
            messages=[_message(each) for each in dialogue.messages]
        ),
        "ignore_eos": not dialogue.must_call,
    }
    if dialogue.functions:
        mode = inference_pb2.TOOL_MODE_REQUIRED
        if not dialogue.must_call:
            mode = inference_pb2.TOOL_MODE_NONE
        fields["tools"] = [_tool(each) for each in dialogue.functions]
        fields["tool_choice"] = inference_pb2.ToolChoice(mode=mode)
        fields["parallel_tool_calls"] = False
    return fields


def _message(message: Message) -> inference_pb2.ChatMessage:
    return inference_pb2.ChatMessage(
        role=message.role,
        content=message.content,
        tool_calls=[
            inference_pb2.ToolCall(
                id=call.id,
                function=inference_pb2.FunctionCall(name=call.name, arguments=call.arguments),
            )
            for call in message.calls
        ],
        tool_call_id=message.call_id,
    )


def _tool(function: Function) -> inference_pb2.Tool:
    return inference_pb2.Tool(
        function=inference_pb2.FunctionTool(
            name=function.name,
            description=function.description,
            parameters=json.dumps(function.parameters),
        )
    )
