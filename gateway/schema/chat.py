"""Body of /v1/chat/completions."""

from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.schema.content import TextContent
from gateway.schema.conversation import ConversationBody
from gateway.schema.generation import Body, ChoicesBody, TokenLimit, TopLogprobs
from gateway.schema.structured import ResponseFormat
from gateway.schema.tools import MAX_TOOLS, Tool, ToolCall, ToolChoice


class Message(Body):
    """One turn."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: TextContent | None = None
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


class ChatBody(ConversationBody, ChoicesBody):
    """A chat completion request."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: TokenLimit | None = None
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

    def answer_limit(self) -> int | None:
        """`max_completion_tokens`, or the older `max_tokens`."""
        newer = self.max_completion_tokens
        return newer if newer is not None else self.max_tokens

    def top_logprob_count(self) -> int | None:
        """`top_logprobs` when `logprobs` is true."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def effort(self) -> str | None:
        """`reasoning_effort`."""
        return self.reasoning_effort

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
