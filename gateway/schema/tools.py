"""`tools`, `tool_choice` and the tool calls of earlier turns."""

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from gateway.schema.forms import first_problem
from gateway.schema.generation import Body

MAX_TOOLS = 128

ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


def _object_schema(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    if schema is not None and schema.get("type", "object") != "object":
        raise ValueError('arguments are an object: the schema must be of type "object"')
    return schema


ArgumentsSchema = Annotated[dict[str, Any] | None, AfterValidator(_object_schema)]
"""The JSON schema of a function's arguments."""


class FunctionSpec(Body):
    """What a tool is called and takes."""

    name: ToolName
    description: str | None = None
    parameters: ArgumentsSchema = None
    strict: bool | None = None

    def arguments_schema(self) -> dict[str, Any]:
        """The schema of its arguments; none means an empty object."""
        if not self.parameters:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        return {"type": "object", **self.parameters}


class Tool(Body):
    """A function that the model may call."""

    type: Literal["function"]
    function: FunctionSpec

    def for_template(self) -> dict[str, Any]:
        """As chat templates print it."""
        return self.model_dump(exclude_none=True, exclude={"function": {"strict"}})


class NamedFunction(Body):
    """The name in a tool choice."""

    name: ToolName


class NamedTool(Body):
    """`{"type": "function", "function": {"name": ...}}`."""

    type: Literal["function"]
    function: NamedFunction


class AllowedSet(Body):
    """Which tools, and whether one of them must be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS)]


class AllowedTools(Body):
    """`{"type": "allowed_tools", "allowed_tools": {...}}`."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedSet


def choice_reader(forms: Mapping[str, type[Body]]) -> Callable[[object], object]:
    """Reads a choice in the form that its `type` says: an error tells of one form, not of all."""

    def read(value: object) -> object:
        if value is None or (isinstance(value, str) and value in {"none", "auto", "required"}):
            return value
        kind = value.get("type") if isinstance(value, dict) else None
        form = forms.get(kind) if isinstance(kind, str) else None
        if form is None:
            raise ValueError(
                "use none, auto, required, or an object of the type function or allowed_tools"
            )
        try:
            return form.model_validate(value)
        except ValidationError as error:
            where, _, text = first_problem(error)
            raise ValueError(f"{where}: {text}") from error

    return read


ToolChoice = Annotated[
    Literal["none", "auto", "required"] | NamedTool | AllowedTools | None,
    BeforeValidator(choice_reader({"function": NamedTool, "allowed_tools": AllowedTools})),
]


class CalledFunction(Body):
    """What the model called in an earlier turn."""

    name: Annotated[str, Field(min_length=1)]
    arguments: str | dict[str, Any] = ""

    def parsed(self) -> str | dict[str, Any]:
        """The arguments as templates want them: an object, when they are one."""
        if isinstance(self.arguments, dict):
            return self.arguments
        try:
            value = json.loads(self.arguments or "{}")
            json.dumps(value, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            # A call that max_tokens cut off, half of a surrogate pair, or nesting that no template
            # can follow; it is printed as it was.
            return self.arguments
        return value if isinstance(value, dict) else self.arguments


class ToolCall(Body):
    """A call of an earlier turn."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """As chat templates read it."""
        named = {} if self.id is None else {"id": self.id}
        function = {"name": self.function.name, "arguments": self.function.parsed()}
        return {**named, "type": self.type, "function": function}
