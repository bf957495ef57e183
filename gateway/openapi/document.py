"""Builds the OpenAPI 3.2 document from the table of operations."""

from http import HTTPStatus
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from gateway.openapi.answers import ErrorReply
from gateway.openapi.operations import JSON, OPERATIONS, TEXT, Operation
from shared.config.version import package_version

STREAM = "text/event-stream"
_REF = "#/components/schemas/{model}"
_WITH_RETRY = (429, 503)
_AUTHENTICATION = (401, 403)

_DESCRIPTION = """OpenAI-compatible API of a prefill and decode pair.

Every answer carries `x-request-id`; a caller may send its own. Unknown fields of a body are ignored
and named in the response header `x-ignored-params`, with `x-param-hint` for what looks like a typo;
a server with `strict_params` refuses them. Errors have one shape, whatever the status."""

_FRAMES = (
    "Server-sent events: every frame is one line `data: {json}` and a blank line, comments are "
    "keep-alives. The last frame is `data: [DONE]`. A stream that fails ends with a frame that "
    "holds an ErrorReply instead."
)

_EVENTS = (
    "Server-sent events: every event has a line `event:` that names its type and a line "
    "`data: {json}` with the same `type`; comments are keep-alives. Exactly one of "
    "response.completed, response.incomplete and response.failed is the last one."
)


def build_document() -> dict[str, Any]:
    """The document, ready for JSON."""
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation)
    return {
        "openapi": "3.2.0",
        "info": {
            "title": "Tandem",
            "version": package_version(),
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Needed where the server has keys.",
                }
            },
        },
        "security": [{}, {"key": []}],
    }


def _schemas() -> dict[str, Any]:
    bodies = {op.body for op in OPERATIONS if op.body is not None}
    given = {
        model
        for op in OPERATIONS
        for model in (op.answer, op.chunk, op.event, op.feed)
        if model is not None
    }
    models = [(m, "validation") for m in sorted(bodies, key=lambda m: m.__name__)]
    models += [(m, "validation") for m in sorted(given | {ErrorReply}, key=lambda m: m.__name__)]
    _, document = models_json_schema(models, ref_template=_REF)  # type: ignore[arg-type]
    schemas: dict[str, Any] = document["$defs"]
    return schemas


def _described(operation: Operation) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "responses": {"200": _success(operation)},
    }
    names = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    if names:
        entry["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    if operation.body is not None:
        content = {JSON: {"schema": _ref(operation.body)}}
        entry["requestBody"] = {"required": True, "content": content}
    for status in sorted({*operation.errors, *_AUTHENTICATION, *operation.same_answer}):
        model = operation.answer if status in operation.same_answer else ErrorReply
        assert model is not None, "an answer that is given with several statuses is JSON"
        entry["responses"][str(status)] = _failure(status, model)
    return entry


def _success(operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if operation.answer is not None:
        content[JSON] = {"schema": _ref(operation.answer)}
    if operation.chunk is not None:
        content[STREAM] = {"itemSchema": _frame(operation.chunk)}
    if operation.event is not None:
        content[STREAM] = {"itemSchema": _named(operation.event)}
    if operation.feed is not None:
        content[STREAM] = {"itemSchema": _frame(operation.feed)}
    if not content:
        content[TEXT] = {"schema": {"type": "string"}}
    description = operation.summary
    if STREAM in content:
        description = f"{description}. {_FRAMES if operation.event is None else _EVENTS}"
    return {"description": description, "content": content}


def _frame(model: type[BaseModel]) -> dict[str, Any]:
    """One event: its data is JSON, but for the last one's."""
    held = {
        "type": "string",
        "contentMediaType": JSON,
        "contentSchema": {"anyOf": [_ref(model), _ref(ErrorReply)]},
    }
    data = {"anyOf": [{"const": "[DONE]"}, held]}
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}


def _named(model: type[BaseModel]) -> dict[str, Any]:
    """One event with a name."""
    held = {"type": "string", "contentMediaType": JSON, "contentSchema": _ref(model)}
    named = {"event": {"type": "string"}, "data": held}
    return {"type": "object", "properties": named, "required": list(named)}


def _failure(status: int, model: type[BaseModel]) -> dict[str, Any]:
    response: dict[str, Any] = {
        "description": HTTPStatus(status).phrase,
        "content": {JSON: {"schema": _ref(model)}},
    }
    if status in _WITH_RETRY and model is ErrorReply:
        response["headers"] = {
            "retry-after": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}},
            "retry-after-ms": {
                "description": "Milliseconds.",
                "schema": {"type": "integer", "minimum": 1},
            },
        }
    return response


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=model.__name__)}
