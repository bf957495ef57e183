"""What the REST API answers, as schemas; the answers themselves are built in `schema/`.

The members here are those that every answer has. More may come with later versions, so none of
the schemas forbids further members.
"""

from typing import Any, Literal

from pydantic import BaseModel, Field


class ErrorObject(BaseModel):
    """What went wrong, the likely cause, and what to do."""

    message: str
    type: str
    param: str | None
    """The field at fault, as a dotted path."""
    code: str


class ErrorReply(BaseModel):
    """The one error shape; a stream that fails ends with a frame of it."""

    error: ErrorObject


class Usage(BaseModel):
    """Token counts; a prompt counts whole, pruned or not, and once for all its answers."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Report(BaseModel):
    """What the pair did for the request; of several prompts, for the first."""

    ttft_ms: float
    tokens_per_s: float
    phases_ms: dict[str, float]
    prompt_tokens: int
    kept_tokens: int
    kv_bytes: int
    transport: str
    attended: int
    dense: int
    attended_ratio: float
    pages: dict[str, Any] | None
    replayed_tokens: int
    route: str


class TopLogprob(BaseModel):
    """One candidate; -9999.0 stands for minus infinity."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(TopLogprob):
    """The token that was drawn, and the best candidates."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """`logprobs` of a chat choice."""

    content: list[ChatLogprob]
    refusal: None


class ToolCallFunction(BaseModel):
    """What is called; `arguments` is JSON text, cut off when max_tokens was reached."""

    name: str
    arguments: str


class MessageToolCall(BaseModel):
    """One call of a tool."""

    id: str
    type: Literal["function"]
    function: ToolCallFunction


class AnswerMessage(BaseModel):
    """The assistant's turn."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[MessageToolCall] = Field(default_factory=list)


FinishReason = Literal["stop", "length", "tool_calls"]
"""Why an answer ended."""


class Choice(BaseModel):
    """What every choice has."""

    index: int
    finish_reason: FinishReason
    stop_reason: str | int | None


class ChatChoice(Choice):
    """One answer."""

    message: AnswerMessage
    logprobs: ChatLogprobs | None


class Reply(BaseModel):
    """What every answer and every chunk has."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class ChatCompletion(Reply):
    """A whole chat answer."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    tandem: Report


class Delta(BaseModel):
    """What is new of a chat choice; the role comes once."""

    role: Literal["assistant"] = "assistant"
    content: str | None = None
    tool_calls: list[dict[str, Any]] = Field(default_factory=list)


class ChunkChoice(BaseModel):
    """A step of one choice; its last chunk has an empty delta and the reason."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatChunk(Reply):
    """One frame of a streamed chat answer; the usage chunk has no choices."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChunkChoice]
    usage: Usage | None = None
    tandem: Report | None = None


class CompletionLogprobs(BaseModel):
    """`logprobs` of a plain choice."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(Choice):
    """One answer."""

    text: str
    logprobs: CompletionLogprobs | None


class Completion(Reply):
    """A whole plain answer."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage
    tandem: Report


class CompletionChunkChoice(BaseModel):
    """A step of one choice."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None


class CompletionChunk(Reply):
    """One frame of a streamed plain answer; the usage chunk has no choices."""

    object: Literal["text_completion"]
    choices: list[CompletionChunkChoice]
    usage: Usage | None = None
    tandem: Report | None = None


class RenderedPrompt(BaseModel):
    """The prompt that a chat request would become."""

    object: Literal["chat.completion.prompt"]
    model: str
    prompt: str
    prompt_token_ids: list[int]
    prompt_tokens: int
    max_model_len: int


class Tokenized(BaseModel):
    """Token ids of a text."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(BaseModel):
    """Text of token ids."""

    prompt: str
