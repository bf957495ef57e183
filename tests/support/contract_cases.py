"""What every client asks the pair in the contract tests: a question, a tool, a shape of answer."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

QUESTION = "Where is the fox?"
MESSAGES: Any = [{"role": "user", "content": QUESTION}]


class Place(BaseModel):
    """Where an animal is."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["forest", "river", "dæch"]
    metres: int = Field(ge=0, le=900)
    sure: bool


class FindAnimal(BaseModel):
    """Looks an animal up."""

    model_config = ConfigDict(extra="forbid")

    name: Literal["fox", "dog"]
    limit: int = Field(ge=1, le=9)


TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "FindAnimal",
        "description": "Looks an animal up.",
        "parameters": FindAnimal.model_json_schema(),
    },
}
