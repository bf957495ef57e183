"""Body of /v1/chat/completions."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from gateway.schema.generation import Body, GenerationBody, TopLogprobs
from gateway.schema.structured import ResponseFormat
from gateway.schema.tools import MAX_TOOLS, Tool, ToolCall, ToolChoice

TEMPLATE_VARIABLES = frozenset({"enable_thinking", "thinking", "reasoning_effort"})
"""Template variables that a client may set; others could break the prompt's structure."""


def _text_of(value: object) -> object:
    """Joins the parts of a content array; a template gets one string."""
    if not isinstance(value, list):
        return value
    pieces: list[str] = []
    for index, part in enumerate(value):
        kind = part.get("type") if isinstance(part, dict) else None
        # Whatever the client sent may stand here, also what no set can look for.
        if kind not in ("text", "input_text", "refusal"):
            raise ValueError(
                f"part {index} is of type {kind!r}, but this model reads text only; "
                'send {"type": "text", "text": "..."}'
            )
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise ValueError(f"part {index} has no string under its text key")  # noqa: TRY004 - pydantic needs ValueError
        pieces.append(text)
    return "".join(pieces)


_CONTENT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "items": {
                "anyOf": [
                    {
                        "type": "object",
                        "properties": {"type": {"enum": [kind]}, key: {"type": "string"}},
                        "required": ["type", key],
                    }
                    for kind, key in (
                        ("text", "text"),
                        ("input_text", "text"),
                        ("refusal", "refusal"),
                    )
                ]
            },
        },
        {"type": "null"},
    ]
}


def allowed_variables(given: dict[str, Any]) -> dict[str, Any]:
    """Those of the client's template variables that the template may see."""
    return {name: value for name, value in given.items() if name in TEMPLATE_VARIABLES}


class Message(Body):
    """One turn."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[str | None, BeforeValidator(_text_of), WithJsonSchema(_CONTENT_SCHEMA)] = (
        None
    )
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    def for_template(self) -> dict[str, Any]:
        """The turn as chat templates read it; absent content is an empty string."""
        unprinted = {"tool_calls", *(self.model_extra or {})}
        turn = self.model_dump(exclude_none=True, exclude=unprinted)
        if self.tool_calls:
            turn["tool_calls"] = [call.for_template() for call in self.tool_calls]
        return {"content": "", **turn}


class ChatBody(GenerationBody):
    """A chat completion request."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    response_format: ResponseFormat | None = None
    modalities: list[str] | None = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def answer_limit(self) -> int | None:
        """`max_completion_tokens`, or the older `max_tokens`."""
        newer = self.max_completion_tokens
        return newer if newer is not None else self.max_tokens

    def top_logprob_count(self) -> int | None:
        """`top_logprobs` when `logprobs` is true."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def template_variables(self) -> dict[str, Any]:
        """Variables for the chat template."""
        given = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort is not None:
            given.setdefault("reasoning_effort", self.reasoning_effort)
        return allowed_variables(given)

    def ignored_variables(self) -> list[str]:
        """Template variables that are not allowed, as dotted names."""
        given = self.chat_template_kwargs or {}
        return [f"chat_template_kwargs.{name}" for name in given if name not in TEMPLATE_VARIABLES]

    def unsupported(self) -> dict[str, tuple[Any, str]]:
        """The older form of tools, and other modalities."""
        tools = "send tools and tool_choice instead"
        found: dict[str, tuple[Any, str]] = {
            "functions": (self.functions, tools),
            "function_call": (_unless(self.function_call, "none", "auto"), tools),
            "modalities": (_unless(self.modalities, ["text"]), "this model writes text only"),
            "audio": (self.audio, "this model writes text only"),
            "prediction": (self.prediction, "leave it out; the answer is the same"),
            "web_search_options": (self.web_search_options, "put search results in the prompt"),
        }
        set_ones = {name: entry for name, entry in found.items() if entry[0]}
        return super().unsupported() | set_ones


def _unless(value: object, *harmless: object) -> object:
    return None if value in harmless else value
