"""Body of /v1/responses."""

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from gateway.schema.conversation import ConversationBody
from gateway.schema.generation import Body, TokenLimit, TopLogprobs
from gateway.schema.response_input import Input
from gateway.schema.response_tools import FlatToolChoice, FunctionTool, TextConfig
from gateway.schema.tools import MAX_TOOLS

LOGPROBS = "message.output_text.logprobs"
"""The member of `include` that has an effect; what the others are about does not occur here."""

Includable = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]

Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16),
]
"""A client's own notes, which come back with the answer."""

NotOffered = Annotated[Any, WithJsonSchema({"type": "null"})]
"""Known fields that are refused unless they are null."""

_STATELESS = (
    "this server stores no responses; leave it out and send the whole conversation as input"
)
_NOT_OFFERED = {
    "previous_response_id": _STATELESS,
    "conversation": _STATELESS,
    "prompt": "send its text as instructions and input",
    "context_management": "shorten the input yourself",
    "moderation": "this server moderates nothing",
}
"""Fields of the type NotOffered, and what to do instead."""

_ELSEWHERE = {
    "messages": "send them as input",
    "max_tokens": "send it as max_output_tokens",
    "max_completion_tokens": "send it as max_output_tokens",
    "response_format": "send it as text.format",
    "reasoning_effort": "send it as reasoning.effort",
    "logprobs": f"put {LOGPROBS} into include",
    "functions": "send tools and tool_choice instead",
    "function_call": "send tools and tool_choice instead",
}
"""Names of the chat API that mean something here under another name."""


class ReasoningConfig(Body):
    """How much the model shall think; it gives no summary of it."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ResponsesBody(ConversationBody):
    """A request for one response, which is not stored."""

    input: Input
    instructions: str | None = None
    max_output_tokens: TokenLimit | None = None
    max_tool_calls: Annotated[int, Field(ge=1)] | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: FlatToolChoice = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    include: list[Includable] | None = None
    top_logprobs: TopLogprobs | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: Metadata | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: NotOffered = None
    conversation: NotOffered = None
    prompt: NotOffered = None
    context_management: NotOffered = None
    moderation: NotOffered = None

    def objects(self) -> dict[str, Body | None]:
        """The options of the text and of thinking, too."""
        text = self.text
        return {
            **super().objects(),
            "reasoning": self.reasoning,
            "text": text,
            "text.format": None if text is None else text.format,
        }

    def without_effect(self) -> list[str]:
        """Nothing is stored, and no thinking is summed up."""
        thinking = self.reasoning or ReasoningConfig()
        asked = {
            "store": self.store,
            "reasoning.summary": thinking.summary,
            "reasoning.generate_summary": thinking.generate_summary,
        }
        return [*super().without_effect(), *(name for name, value in asked.items() if value)]

    def effort(self) -> str | None:
        """`reasoning.effort`."""
        return None if self.reasoning is None else self.reasoning.effort

    def answer_limit(self) -> int | None:
        """`max_output_tokens`."""
        return self.max_output_tokens

    def top_logprob_count(self) -> int | None:
        """`top_logprobs`; 0 when only `include` asks for log-probabilities."""
        return self.top_logprobs or (0 if LOGPROBS in (self.include or ()) else None)

    def offers_tools(self) -> bool:
        """Whether the model may call anything."""
        return bool(self.tools) and self.tool_choice != "none"

    def unsupported(self) -> dict[str, tuple[Any, str]]:
        """State, what only another server has, and names of the chat API."""
        extra = self.model_extra or {}
        found = {
            "background": (bool(self.background), "nothing is stored that could be fetched later"),
            "truncation": (
                self.truncation == "auto",
                "nothing is dropped from an input; shorten it, and leave truncation out",
            ),
            "top_logprobs" if self.top_logprobs else "include": (
                self.offers_tools() and self.top_logprob_count() is not None,
                "with tools it is not certain which tokens are text; leave one of both out",
            ),
            "n": (extra.get("n") not in (None, 1), "a response is one answer"),
        }
        found |= {
            name: (getattr(self, name) is not None, hint) for name, hint in _NOT_OFFERED.items()
        }
        found |= {name: (extra.get(name) is not None, hint) for name, hint in _ELSEWHERE.items()}
        set_ones = {name: entry for name, entry in found.items() if entry[0]}
        return super().unsupported() | set_ones
