"""A conversation as the body of a chat completion."""

from typing import Any

from loadtest.load.dialogue import Dialogue, Message


def dialogue_body(dialogue: Dialogue) -> dict[str, Any]:
    """The fields of a request that say what is asked; JSON-ready.

    A call is ended by its grammar, which ignoring end-of-text would contradict.
    """
    body: dict[str, Any] = {"messages": [_message(each) for each in dialogue.messages]}
    if dialogue.functions:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": function.name,
                    "description": function.description,
                    "parameters": function.parameters,
                },
            }
            for function in dialogue.functions
        ]
        body["tool_choice"] = "required" if dialogue.must_call else "none"
        body["parallel_tool_calls"] = False
    return body | {"ignore_eos": not dialogue.must_call}


def _message(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        return {"role": "tool", "content": message.content, "tool_call_id": message.call_id}
    if not message.calls:
        return {"role": message.role, "content": message.content}
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in message.calls
    ]
    return {"role": message.role, "content": message.content or None, "tool_calls": calls}
