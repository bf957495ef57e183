"""Bodies of /tokenize and /detokenize."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from gateway.schema.chat import Message
from gateway.schema.generation import Body

MAX_TOKEN_ID = 2**32 - 1


class TokenizeBody(Body):
    """A text, or a conversation that the chat template turns into one."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    """The tokenizer's own opening token; unset: for a text, not for a conversation."""
    add_generation_prompt: bool | None = None
    """A conversation ends where the assistant's turn begins; unset: yes."""
    return_token_strs: bool | None = None
    """The answer spells every token out."""
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> "TokenizeBody":
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("send either prompt or messages")
        return self


class DetokenizeBody(Body):
    """Token ids."""

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]]
