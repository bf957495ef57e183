"""Body of /v1/chat/completions."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from gateway.schema.generation import Body, GenerationBody, TopLogprobs

TEMPLATE_VARIABLES = frozenset({"enable_thinking", "thinking", "reasoning_effort"})
"""Template variables that a client may set; others could break the prompt's structure."""


def _text_of(value: object) -> object:
    """Joins the parts of a content array; a template gets one string."""
    if not isinstance(value, list):
        return value
    pieces: list[str] = []
    for index, part in enumerate(value):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in {"text", "input_text", "refusal"}:
            raise ValueError(
                f"part {index} is of type {kind!r}, but this model reads text only; "
                'send {"type": "text", "text": "..."}'
            )
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise ValueError(f"part {index} has no string under its text key")  # noqa: TRY004 - pydantic needs ValueError
        pieces.append(text)
    return "".join(pieces)


class Message(Body):
    """One turn."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[str | None, BeforeValidator(_text_of)] = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None

    def for_template(self) -> dict[str, Any]:
        """The turn as chat templates read it; absent content is an empty string."""
        turn = self.model_dump(exclude_none=True, exclude=set(self.model_extra or {}))
        return {"content": "", **turn}


class ChatBody(GenerationBody):
    """A chat completion request."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    function_call: Any = None
    response_format: Any = None
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
        return {name: value for name, value in given.items() if name in TEMPLATE_VARIABLES}

    def ignored_variables(self) -> list[str]:
        """Template variables that are not allowed, as dotted names."""
        given = self.chat_template_kwargs or {}
        return [f"chat_template_kwargs.{name}" for name in given if name not in TEMPLATE_VARIABLES]

    def unsupported(self) -> dict[str, tuple[Any, str]]:
        """Tools, grammars and other modalities."""
        tools = "describe the tools in the system message and parse the text"
        grammar = 'ask for the format in the prompt, or send {"type": "text"}'
        found: dict[str, tuple[Any, str]] = {
            "tools": (self.tools, tools),
            "functions": (self.functions, tools),
            "tool_choice": (_unless(self.tool_choice, "none", "auto"), tools),
            "function_call": (_unless(self.function_call, "none", "auto"), tools),
            "response_format": (_unless(self.response_format, {"type": "text"}), grammar),
            "modalities": (_unless(self.modalities, ["text"]), "this model writes text only"),
            "audio": (self.audio, "this model writes text only"),
            "prediction": (self.prediction, "leave it out; the answer is the same"),
            "web_search_options": (self.web_search_options, "put search results in the prompt"),
        }
        set_ones = {name: entry for name, entry in found.items() if entry[0]}
        return super().unsupported() | set_ones


def _unless(value: object, *harmless: object) -> object:
    return None if value in harmless else value
