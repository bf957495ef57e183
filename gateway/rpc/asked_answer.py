"""What a Generate call says about its answers: `response_format` and tools."""

from typing import Annotated, Any

from pydantic import Field

from gateway.planner import AskedAnswer
from gateway.schema.generation import Body
from gateway.schema.parse import parse_object, validated
from gateway.schema.tools import MAX_TOOLS, Tool, ToolChoice
from gateway.structured.enforcer import ANY_OBJECT
from protos.tandem.v1 import inference_pb2
from shared.errors import InvalidRequestError
from shared.grammar.compiler import INVALID

_FORMAT = "response_format"
_MODES = {
    inference_pb2.TOOL_MODE_UNSPECIFIED: "auto",
    inference_pb2.TOOL_MODE_AUTO: "auto",
    inference_pb2.TOOL_MODE_NONE: "none",
    inference_pb2.TOOL_MODE_REQUIRED: "required",
}


class _ToolFields(Body):
    """The same checks as REST's; the paths of fields are those of the messages, too."""

    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)]
    tool_choice: ToolChoice


def asked_answer(request: inference_pb2.GenerateRequest) -> AskedAnswer:
    """What the answers must be.

    Raises:
        InvalidRequestError: a schema that is no JSON object, a tool without a valid name, a choice
            that is none, or tools without a conversation.
    """
    if request.tools and request.WhichOneof("prompt") != "conversation":
        raise InvalidRequestError(
            "tools are printed by the model's chat template; send a conversation, or leave them "
            "out",
            param="tools",
        )
    given = validated(
        {
            "tools": [_tool(tool, index) for index, tool in enumerate(request.tools)],
            "tool_choice": _choice(request.tool_choice)
            if request.HasField("tool_choice")
            else None,
        },
        _ToolFields,
    )
    return AskedAnswer(
        schema=_answer_schema(request.response_format),
        schema_param=_FORMAT,
        tools=tuple(given.tools),
        choice=given.tool_choice,
        several=request.parallel_tool_calls or not request.HasField("parallel_tool_calls"),
        ignore_eos=request.ignore_eos,
        min_tokens=request.stop.min_tokens,
    )


def _answer_schema(given: inference_pb2.ResponseFormat) -> dict[str, Any] | None:
    match given.WhichOneof("kind"):
        case "json_schema":
            return _schema(given.json_schema, name="response_format.json_schema", param=_FORMAT)
        case "json_object" if given.json_object:
            return ANY_OBJECT
        case _:
            return None


def _tool(tool: inference_pb2.Tool, index: int) -> dict[str, Any]:
    """As REST clients write it."""
    if tool.WhichOneof("kind") is None:
        return {"type": "function"}
    function = tool.function
    param = f"tools.{index}.function.parameters"
    return {
        "type": "function",
        "function": {
            "name": function.name,
            "description": function.description or None,
            "parameters": _schema(function.parameters, name=param, param=param)
            if function.parameters
            else None,
            "strict": function.strict,
        },
    }


def _choice(choice: inference_pb2.ToolChoice) -> str | dict[str, Any]:
    """As REST clients write it."""
    mode = _MODES.get(choice.mode)
    if mode is None:
        raise InvalidRequestError(
            f"tool_choice.mode {choice.mode} names no mode; use a value of ToolMode",
            param="tool_choice",
        )
    if not choice.allowed:
        return mode
    if mode == "none":
        raise InvalidRequestError(
            "tool_choice hides all tools and names some that may be called; leave one of them out",
            param="tool_choice",
        )
    tools = [{"type": "function", "function": {"name": name}} for name in choice.allowed]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def _schema(text: str, *, name: str, param: str) -> dict[str, Any]:
    try:
        return parse_object(text.encode())
    except InvalidRequestError as error:
        raise InvalidRequestError(
            f"{name} is not a JSON object; send the schema as JSON text", code=INVALID, param=param
        ) from error
