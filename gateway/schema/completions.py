"""Body of /v1/completions."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from gateway.schema.generation import ChoicesBody
from shared.types.token_ids import compact_ids
from shared.wire.token_ids import smallest_id

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 64


def _prompts(value: object) -> object:
    """All forms of `prompt` as a list of strings and arrays of token ids."""
    if (ids := _ids(value)) is not None:
        return [ids]
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not 0 < len(value) <= MAX_PROMPTS:
        raise ValueError(
            f"must be a string, a list of token ids, or a list of 1 to {MAX_PROMPTS} of these"
        )
    return [_prompt(entry) for entry in value]


def _prompt(entry: object) -> str | Sequence[int]:
    if entry == "":
        raise ValueError("an empty prompt has nothing to continue; send at least one token")
    ids = entry if isinstance(entry, str) else _ids(entry)
    if ids is None:
        raise ValueError("each prompt must be a string or a non-empty list of token ids")
    return ids


def _ids(value: object) -> Sequence[int] | None:
    """A list of token ids, as an array where they fit; None for anything else."""
    if not isinstance(value, list) or not value:
        return None
    try:
        ids = compact_ids(value)
    except TypeError:
        return None
    except OverflowError:
        return value if set(map(type, value)) == {int} and min(value) >= 0 else None
    # What passes for an id and is none is false or true, as 0 or 1: where neither number is found,
    # nobody walks through tens of thousands of ids to see it.
    if smallest_id(ids) <= 1 and set(map(type, value)) != {int}:
        return None
    return ids


_TEXT_SCHEMA = {"type": "string", "minLength": 1}
_IDS_SCHEMA = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_PROMPT_SCHEMA = {
    "anyOf": [
        _TEXT_SCHEMA,
        _IDS_SCHEMA,
        {
            "type": "array",
            "items": {"anyOf": [_TEXT_SCHEMA, _IDS_SCHEMA]},
            "minItems": 1,
            "maxItems": MAX_PROMPTS,
        },
    ]
}


class CompletionBody(ChoicesBody):
    """A plain completion request; `prompt` holds texts and sequences of token ids after parsing."""

    prompt: Annotated[Any, BeforeValidator(_prompts), WithJsonSchema(_PROMPT_SCHEMA)]
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None

    def answer_limit(self) -> int | None:
        """`max_tokens`, 16 when unset, as the API says."""
        return self.max_tokens if self.max_tokens is not None else DEFAULT_MAX_TOKENS

    def choices(self) -> int:
        """`n` answers to each prompt."""
        return len(self.prompt) * self.branches()

    def top_logprob_count(self) -> int | None:
        """`logprobs`."""
        return self.logprobs

    def unsupported(self) -> dict[str, tuple[Any, str]]:
        """Echo, insertion and best-of."""
        return {
            "echo": (
                self.echo,
                "put the prompt before the answer yourself; log-probabilities of prompt tokens "
                "are not to be had, since a pruned prompt does not have them",
            ),
            "suffix": (self.suffix, "this model only continues text"),
            "best_of": (
                self.best_of if self.best_of not in {None, self.n or 1} else None,
                "no answer is thrown away here; leave it out, set n, and choose yourself",
            ),
        }
