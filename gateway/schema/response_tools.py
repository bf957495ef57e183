"""`tools`, `tool_choice` and `text` of a response: the flat shapes of what a chat request says."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field

from gateway.schema.forms import form, type_of
from gateway.schema.generation import Body
from gateway.schema.structured import JsonSchemaFormat
from gateway.schema.tools import (
    MAX_TOOLS,
    AllowedSet,
    AllowedTools,
    ArgumentsSchema,
    FunctionSpec,
    NamedFunction,
    NamedTool,
    Tool,
    ToolChoice,
    ToolName,
    choice_reader,
)
from gateway.structured.schema_check import MAX_SCHEMA_DEPTH, too_deep


def _function(value: object) -> object:
    if isinstance(value, str) and value != "function":
        raise ValueError(
            f"tools of the type {value[:64]!r} are not to be had here; offer functions, and call "
            "what they stand for yourself"
        )
    return value


FunctionType = Annotated[Literal["function"], BeforeValidator(_function)]
"""Of a tool that the client calls; this server runs none."""


def _repeatable(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    """Answers repeat the tools, also those that nobody holds to their schemas."""
    if schema is not None and too_deep(schema):
        raise ValueError(f"the schema is nested deeper than {MAX_SCHEMA_DEPTH} levels")
    return schema


class FunctionTool(Body):
    """A function that the model may call."""

    type: FunctionType
    name: ToolName
    description: str | None = None
    parameters: Annotated[ArgumentsSchema, AfterValidator(_repeatable)] = None
    strict: bool | None = None

    def as_tool(self) -> Tool:
        """As a chat request says it."""
        spec = FunctionSpec(
            name=self.name,
            description=self.description,
            parameters=self.parameters,
            strict=self.strict,
        )
        return Tool(type="function", function=spec)


class FlatNamedTool(Body):
    """`{"type": "function", "name": ...}`."""

    type: FunctionType
    name: ToolName

    def as_choice(self) -> NamedTool:
        """As a chat request says it."""
        return NamedTool(type="function", function=NamedFunction(name=self.name))

    def described(self) -> dict[str, Any]:
        """As answers repeat it: without what nobody knows."""
        return {"type": self.type, "name": self.name}


class FlatAllowedTools(Body):
    """`{"type": "allowed_tools", "mode": ..., "tools": [...]}`."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[FlatNamedTool], Field(min_length=1, max_length=MAX_TOOLS)]

    def as_choice(self) -> AllowedTools:
        """As a chat request says it."""
        tools = [tool.as_choice() for tool in self.tools]
        allowed = AllowedSet(mode=self.mode, tools=tools)
        return AllowedTools(type="allowed_tools", allowed_tools=allowed)

    def described(self) -> dict[str, Any]:
        """As answers repeat it: without what nobody knows."""
        tools = [tool.described() for tool in self.tools]
        return {"type": self.type, "mode": self.mode, "tools": tools}


FlatToolChoice = Annotated[
    Literal["none", "auto", "required"] | FlatNamedTool | FlatAllowedTools | None,
    BeforeValidator(choice_reader({"function": FlatNamedTool, "allowed_tools": FlatAllowedTools})),
]


def as_choice(choice: FlatToolChoice) -> ToolChoice:
    """As a chat request says it."""
    return choice.as_choice() if isinstance(choice, FlatNamedTool | FlatAllowedTools) else choice


class PlainText(Body):
    """Any text."""

    type: Literal["text"]


class JsonObject(Body):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonBySchema(JsonSchemaFormat):
    """JSON that a schema describes; it is enforced whatever `strict` says."""

    type: Literal["json_schema"]


class TextConfig(Body):
    """What the text of the answer must be."""

    format: (
        Annotated[
            Annotated[PlainText, form("text")]
            | Annotated[JsonObject, form("json_object")]
            | Annotated[JsonBySchema, form("json_schema")],
            Discriminator(
                type_of,
                custom_error_type="format",
                custom_error_message="The type should be text, json_object or json_schema",
            ),
        ]
        | None
    ) = None
    verbosity: Literal["low", "medium", "high"] | None = None

    def described(self) -> dict[str, Any]:
        """The format as answers repeat it."""
        if self.format is None:
            return {"type": "text"}
        described: dict[str, Any] = {"type": self.format.type}
        if isinstance(self.format, JsonBySchema):
            given = self.format
            described |= {
                "name": given.name,
                "description": given.description,
                "schema": given.definition,
                "strict": given.strict is not False,
            }
        return described
