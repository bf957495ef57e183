"""What an answer is generated from: a text, token ids, or a conversation with its tool calls."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from protos.tandem.v1 import inference_pb2
from shared.errors import InvalidRequestError
from shared.types.token_ids import MAX_TOKEN_ID, ids_to_bytes

Role = Literal["system", "developer", "user", "assistant", "tool"]
"""Who speaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that the model made."""

    id: str
    """Names the call; the turn that answers it repeats it."""
    name: str
    """Name of the function."""
    arguments: str
    """Its arguments as JSON text, as the model wrote them."""

    def parsed(self) -> Any:  # noqa: ANN401  whatever JSON there is
        """The arguments as Python objects.

        Raises:
            ValueError: an answer that was cut off left them incomplete.
        """
        return json.loads(self.arguments)


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    """Who speaks."""
    content: str = ""
    """Its text."""
    name: str = ""
    """Who speaks, for templates that print it."""
    tool_calls: tuple[ToolCall, ...] = ()
    """What the model called in this turn."""
    tool_call_id: str = ""
    """The call that this turn answers; for the role tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call; the caller runs it."""

    name: str
    """Letters, digits, _ and -, at most 64."""
    description: str = ""
    """What it is for, in words for the model."""
    parameters: Mapping[str, Any] | None = None
    """JSON schema of its arguments, an object; None: it takes none."""
    strict: bool = False
    """Arguments follow the schema even where the model is free to call."""


_FORMS = "a prompt is a text, or a sequence of token ids, or one of messages"

Prompt = str | Sequence[int] | Sequence[Message]
"""A text that is continued as it is, ready token ids, or a conversation for the chat template."""


def set_prompt(request: inference_pb2.GenerateRequest, prompt: Prompt) -> None:
    """Writes a prompt into a request.

    Raises:
        InvalidRequestError: it is empty.
        TypeError: it is none of the three forms.
    """
    if not prompt:
        raise InvalidRequestError(
            "the prompt is empty; give a text, token ids or at least one message",
            code="missing_required_parameter",
            param="prompt",
        )
    if isinstance(prompt, str):
        request.text = prompt
        return
    if isinstance(prompt[0], Message):
        messages = [_message(turn) for turn in prompt if isinstance(turn, Message)]
        if len(messages) < len(prompt):
            raise TypeError(_FORMS)
        request.conversation.messages.extend(messages)
    else:
        request.token_ids.packed = _packed(cast("Sequence[int]", prompt))


def tool_to_pb(tool: Tool) -> inference_pb2.Tool:
    """Converts a tool."""
    return inference_pb2.Tool(
        function=inference_pb2.FunctionTool(
            name=tool.name,
            description=tool.description,
            parameters="" if tool.parameters is None else json.dumps(tool.parameters),
            strict=tool.strict,
        )
    )


def _packed(ids: Sequence[int]) -> bytes:
    try:
        return ids_to_bytes(ids)
    except TypeError:
        raise TypeError(_FORMS) from None
    except OverflowError:
        bad = next(token_id for token_id in ids if not 0 <= token_id <= MAX_TOKEN_ID)
        raise ValueError(f"token id {bad} is outside 0 to {MAX_TOKEN_ID}") from None


def _message(message: Message) -> inference_pb2.ChatMessage:
    return inference_pb2.ChatMessage(
        role=message.role,
        content=message.content,
        name=message.name,
        tool_calls=[
            inference_pb2.ToolCall(
                id=call.id,
                function=inference_pb2.FunctionCall(name=call.name, arguments=call.arguments),
            )
            for call in message.tool_calls
        ],
        tool_call_id=message.tool_call_id,
    )
