"""What requests for responses are about in tests, and the two ways to send one."""

from collections.abc import Sequence
from typing import Any

from tests.support.gateway_rig import Rig
from tests.support.response_events import named_events, whole_response

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
CLOCK: dict[str, Any] = {"type": "function", "name": "clock"}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
TICK = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'


def prompts_of(rig: Rig) -> list[list[int]]:
    """The prompts that workers will have seen, without repetition."""
    answer, seen = rig.simulation.answer, []

    def note(prompt: Sequence[int]) -> list[int]:
        if list(prompt) not in seen:
            seen.append(list(prompt))
        return answer(prompt)

    rig.simulation.answer = note
    return seen


async def both(rig: Rig, **fields: Any) -> list[dict[str, Any]]:
    """The response whole, and the one at the end of a stream."""
    whole = whole_response((await rig.respond(**fields)).content)
    events = named_events((await rig.respond(**fields, stream=True)).content)
    assert events[-1]["type"] == f"response.{whole['status']}"
    return [whole, events[-1]["response"]]


def as_chat(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool as chat requests write it."""
    return {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}


def nested(levels: int) -> dict[str, Any]:
    """An object so many levels deep."""
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"x": schema}
    return schema
