"""`response_format` of a chat completion."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from gateway.schema.generation import Body


class JsonSchemaFormat(Body):
    """`response_format.json_schema`; it is enforced whatever `strict` says."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: str | None = None
    definition: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(Body):
    """What the content must be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> "ResponseFormat":
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("the type json_schema needs a json_schema with name and schema")
        return self
