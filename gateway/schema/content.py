"""The text of a turn: a string, or parts that are joined into one."""

from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

_TEXT_KEYS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
}
"""Where the text of each type of part is."""


def _text_of(value: object) -> object:
    """Joins the parts of a content array; a template gets one string."""
    if not isinstance(value, list):
        return value
    pieces: list[str] = []
    for index, part in enumerate(value):
        kind = part.get("type") if isinstance(part, dict) else None
        # Whatever the client sent may stand here, also what no mapping can look for.
        key = _TEXT_KEYS.get(kind) if isinstance(kind, str) else None
        if key is None:
            raise ValueError(
                f"part {index} is of type {kind!r}, but this model reads text only; "
                'send {"type": "text", "text": "..."}'
            )
        text = part.get(key)
        if not isinstance(text, str):
            raise ValueError(f"part {index} has no string under its text key")  # noqa: TRY004 - pydantic needs ValueError
        pieces.append(text)
    return "".join(pieces)


_SCHEMA = {
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
                    for kind, key in _TEXT_KEYS.items()
                ]
            },
        },
    ]
}

TextContent = Annotated[str, BeforeValidator(_text_of), WithJsonSchema(_SCHEMA)]
"""A string; parts are joined."""
