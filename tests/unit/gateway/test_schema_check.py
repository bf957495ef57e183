"""Hostile schemas are refused before a compiler sees them."""

import json
from contextlib import closing
from typing import Any

import pytest

from gateway.schema.chat import ChatBody
from gateway.structured.enforcer import Enforcer
from gateway.structured.schema_check import MAX_SCHEMA_BYTES, check_schema
from shared.errors import InvalidRequestError
from shared.grammar.compiler import GrammarCompiler
from shared.tokenizer.tokenizer import Tokenizer
from tests.support.tiny_tokenizer import write_tokenizer_folder


def nested(levels: int) -> dict[str, Any]:
    """Objects in objects."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (nested(40), "deeper"),
        (nested(20_000), "deeper"),
        ({"properties": {f"p{i}": {"type": "string"} for i in range(1200)}}, "objects"),
        ({"enum": ["x" * 1000] * 200}, str(MAX_SCHEMA_BYTES)),
        ({"type": "integer", "multipleOf": 9_999_991}, "multipleOf"),
        ({"type": "number", "multipleOf": 0.0001234567}, "multipleOf"),
        ({"type": "number", "multipleOf": 1e300}, "multipleOf"),
        ({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}, "multipleOf"),
        ({"type": "object", "x-guidance": {"lenient": True}}, "x-guidance"),
    ],
    ids=["deep", "very deep", "wide", "long", "steps", "decimals", "huge", "product", "options"],
)
def test_refused(schema: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said) as caught:
        check_schema(schema, param="here")
    assert caught.value.param == "here"
    assert caught.value.error_code == "invalid_json_schema"


@pytest.mark.parametrize(
    "schema",
    [
        nested(25),
        {"enum": [f"value {i}" for i in range(5000)]},
        {"type": "number", "multipleOf": 0.25},
        {"properties": {"multipleOf": {"type": "string"}, "x-guidance": {"type": "null"}}},
        {"multipleOf": True},
        {},
    ],
)
def test_let_through(schema: dict[str, Any]) -> None:
    check_schema(schema, param="here")


async def test_the_enforcer_names_the_field(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = write_tokenizer_folder(tmp_path_factory.mktemp("tokenizer"))
    with closing(GrammarCompiler(Tokenizer.from_folder(folder))) as grammars:
        enforcer = Enforcer(grammars)
        with pytest.raises(InvalidRequestError, match="uniqueItems") as caught:
            await enforcer.json_schema({"type": "array", "uniqueItems": True}, param="a.b")
        assert caught.value.param == "a.b"
        text = await enforcer.json_schema({"type": "object"}, param="a.b")
    assert json.loads(text)["grammars"][0]["json_schema"]["type"] == "object"


def test_arguments_become_objects_for_the_template() -> None:
    calls = [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
        {"id": "2", "type": "function", "function": {"name": "f", "arguments": '{"a": '}},
        {"id": "3", "type": "function", "function": {"name": "f", "arguments": ""}},
    ]
    body = ChatBody.model_validate(
        {"messages": [{"role": "assistant", "content": None, "tool_calls": calls}]}
    )
    turn = body.messages[0].for_template()
    assert turn["content"] == ""
    found = [call["function"]["arguments"] for call in turn["tool_calls"]]
    assert found == [{"a": 1}, '{"a": ', {}]
