"""What /v1/responses answers, as schemas; the answers themselves are built in `schema/`."""

from typing import Any, Literal

from pydantic import BaseModel, RootModel

from gateway.openapi.answers import ChatLogprob, Report

Status = Literal["in_progress", "completed", "incomplete"]
"""How far an item is."""


class OutputText(BaseModel):
    """The text of a message."""

    type: Literal["output_text"]
    text: str
    annotations: list[dict[str, Any]]
    logprobs: list[ChatLogprob]


class OutputMessage(BaseModel):
    """Text of the model."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: Status
    content: list[OutputText]


class OutputCall(BaseModel):
    """A call; `arguments` is JSON text, cut off where the item is incomplete."""

    id: str
    type: Literal["function_call"]
    status: Status
    call_id: str
    name: str
    arguments: str


OutputItem = OutputMessage | OutputCall


class InputTokens(BaseModel):
    """Nothing is taken from a cache."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokens(BaseModel):
    """Thinking is not told apart from the text."""

    reasoning_tokens: int


class ResponseUsage(BaseModel):
    """Token counts; the input counts whole, pruned or not."""

    input_tokens: int
    input_tokens_details: InputTokens
    output_tokens: int
    output_tokens_details: OutputTokens
    total_tokens: int


class ResponseFailure(BaseModel):
    """What went wrong in a stream; `reason` is the code that an error reply would have."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str
    type: str
    param: str | None
    reason: str


class IncompleteDetails(BaseModel):
    """What cut the answer off."""

    reason: Literal["max_output_tokens"]


class ResponseReply(BaseModel):
    """A response; it is not stored, whatever `store` was asked for."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    background: Literal[False]
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: None
    prompt_cache_key: str | None
    reasoning: dict[str, str | None]
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: Literal[False]
    system_fingerprint: str
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage | None
    user: str | None
    tandem: Report | None = None


class NumberedEvent(BaseModel):
    """What every event has; numbers begin at 0 and have no gaps."""

    sequence_number: int


class LifeEvent(NumberedEvent):
    """The whole response; exactly one of the last three ends a stream."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    response: ResponseReply


class ItemEvent(NumberedEvent):
    """An item begins or ends."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class PlacedEvent(NumberedEvent):
    """What happens in an item."""

    item_id: str
    output_index: int


class PartEvent(PlacedEvent):
    """The text of a message begins or ends."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    content_index: int
    part: OutputText


class TextDeltaEvent(PlacedEvent):
    """More text."""

    type: Literal["response.output_text.delta"]
    content_index: int
    delta: str
    logprobs: list[ChatLogprob]


class TextDoneEvent(PlacedEvent):
    """All of the text."""

    type: Literal["response.output_text.done"]
    content_index: int
    text: str
    logprobs: list[ChatLogprob]


class ArgumentsDeltaEvent(PlacedEvent):
    """More arguments of a call."""

    type: Literal["response.function_call_arguments.delta"]
    delta: str


class ArgumentsDoneEvent(PlacedEvent):
    """All arguments of a call."""

    type: Literal["response.function_call_arguments.done"]
    name: str
    arguments: str


class ResponseEvent(
    RootModel[
        LifeEvent
        | ItemEvent
        | PartEvent
        | TextDeltaEvent
        | TextDoneEvent
        | ArgumentsDeltaEvent
        | ArgumentsDoneEvent
    ]
):
    """One event of a streamed response."""
