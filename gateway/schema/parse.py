"""Bytes of a body into a checked request, or the error that names the field."""

import json
import math
from collections.abc import Iterator
from typing import Any, TypeVar

import orjson
from pydantic import ValidationError

from gateway.schema.forms import first_problem
from gateway.schema.generation import Body, ChoicesBody, GenerationBody
from shared.errors import InvalidRequestError

B = TypeVar("B", bound=GenerationBody)
M = TypeVar("M", bound=Body)

MISSING = "missing_required_parameter"
UNSUPPORTED = "unsupported_parameter"


def parse_body(raw: bytes, cls: type[B]) -> B:
    """Parses and checks one request.

    Raises:
        InvalidRequestError: not JSON, wrong types, values out of range, contradictions, or known
            parameters that this server cannot honour; `param` is the dotted path.
    """
    value = parse_object(raw)
    body = validated(value, cls)
    _check_combinations(body, value)
    for name, (_, hint) in body.unsupported().items():
        raise InvalidRequestError(
            f"{name} is not supported by this server as it was set; {hint}",
            code=UNSUPPORTED,
            param=name,
        )
    return body


def validated(value: dict[str, Any], cls: type[M]) -> M:
    """A JSON object as a body.

    Raises:
        InvalidRequestError: a field is missing, of another type or out of range.
    """
    try:
        return cls.model_validate(value)
    except ValidationError as error:
        raise _explain(error) from error
    except RecursionError as error:
        raise InvalidRequestError(
            "a field of the body is nested too deeply to be read, as no field needs to be; send a "
            "flatter one"
        ) from error


def parse_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw`.

    Raises:
        InvalidRequestError: not JSON, or not an object.
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(
            f"the body is not valid JSON ({error}); send one JSON object in UTF-8",
            param=_not_a_number(raw),
        ) from error
    if not isinstance(value, dict):
        raise InvalidRequestError(
            f"the body is a JSON {type(value).__name__}, not an object; send one object"
        )
    return value


def _explain(error: ValidationError) -> InvalidRequestError:
    param, kind, text = first_problem(error)
    if kind == "missing":
        return InvalidRequestError(
            f"{param} is required and missing; add it to the body", code=MISSING, param=param
        )
    return InvalidRequestError(f"{param}: {text}; correct it", param=param)


def _check_combinations(body: GenerationBody, value: dict[str, Any]) -> None:
    if body.stream_options is not None and not body.stream:
        raise InvalidRequestError(
            "stream_options was sent without stream; set stream to true or leave it out",
            param="stream_options",
        )
    asked = isinstance(body, ChoicesBody) and value.get("top_logprobs") is not None
    if asked and body.top_logprob_count() is None:
        raise InvalidRequestError(
            "top_logprobs was sent without logprobs; set logprobs to true", param="top_logprobs"
        )
    pages = body.tandem
    # Of one that was not sent only the workers know the value: their profile's.
    budget, recent = (pages.page_budget, pages.recency_pages) if pages else (None, None)
    if budget is not None and recent is not None and budget < recent + 2:
        raise InvalidRequestError(
            f"tandem.page_budget is {budget}, too small beside {recent} "
            "recency pages, page 0 and one chosen page; raise it or lower tandem.recency_pages",
            param="tandem.page_budget",
        )
    limit = body.answer_limit()
    if limit is not None and (body.min_tokens or 0) > limit:
        raise InvalidRequestError(
            f"min_tokens is {body.min_tokens}, above the limit of {limit} tokens; lower it",
            param="min_tokens",
        )


def _not_a_number(raw: bytes) -> str | None:
    """Path of the first NaN or Infinity, which many encoders write and JSON does not have."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return next(_non_finite(value, ()), None)


def _non_finite(value: object, path: tuple[str, ...]) -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield ".".join(path)
    elif isinstance(value, dict):
        for key, inner in value.items():
            # The lenient parser takes half a surrogate pair, which no answer of ours could carry.
            name = key.encode("utf-8", errors="replace").decode("utf-8")
            yield from _non_finite(inner, (*path, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _non_finite(inner, (*path, str(index)))
