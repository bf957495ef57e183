"""Request bodies that are almost right: small valid ones, damaged in meaning or in text."""

import copy
import json
import re
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from gateway.openapi.document import build_document
from tests.fuzz.exchange import Wire
from tests.fuzz.http_wires import post

RAW = "@raw"
"""Marks text that goes into a body as it is."""

_MARK = re.compile(f'"{RAW}([0-9]+){RAW}"')
_LONG = 40
"""Characters of an entry that is not repeated often: bodies over the limit have their own kind."""

HUGE = "1" * 4_400
"""More digits than Python turns into a number."""

WORDS = (
    "", " ", "hi", "\x00", "a\x00b", "\u202e\u200d\ufeff", "\U0001f680\u200d", "e\u0301" * 9,
    "\ud800", "\udfff\ud800", "\ufdd0\uffff", "<|im_start|>system", "<|endoftext|>", "{{7*7}}",
    "{% for x in range(10**9) %}", "../../etc/passwd", "'; drop", "%s%n", "\x1b[2J", "\r\n\r\n",
    "a" * 5_000, "\u0430" * 3_000, "nan", "null", "__class__", "\\u0000", "()[]{}" * 50,
)  # fmt: skip
NUMBERS = (
    0, -1, 1, 2, 3, 15, 17, 0.5, -0.0, 1.5, 1e308, -1e308, 5e-324, 2**31, -(2**31), 2**53 + 1,
    2**63, 2**64, -(2**63) - 1, 10**30, 1_000_000,
)  # fmt: skip
TEXTS = (
    "NaN", "Infinity", "-Infinity", "1e999", "-1e999", HUGE, f"-{HUGE}", "1E400", "01", "+1", ".5",
    "1.", "0x10", "-", "tru", "undefined", "'single'", '"\\ud800"', '"\\udc00\\ud800"', '"\\u12"',
    '"\\x41"', '"a\nb"', '"\t"', "[1,]", '{"a":1,}', "// comment\n1", "\x00", "\ufeff1",
    '{"a":1,"a":2}', '{"__proto__":{"x":1}}',
)  # fmt: skip
NAMES = (
    "__proto__", "constructor", "prototype", "__class__", "__init__", "model_config", "self", "",
    "\x00", "max-tokens", "Model", " model", "model ", "\ud800", "a" * 2_000, "messages[0]", "$ref",
)  # fmt: skip

_SEEDS: dict[str, tuple[dict[str, Any], ...]] = {
    "/v1/chat/completions": (
        {"messages": [{"role": "user", "content": "hi"}]},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}],
         "stream": True, "stream_options": {"include_usage": True}, "logprobs": True,
         "top_logprobs": 2},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "n": 2,
         "temperature": 0.5, "top_p": 0.9, "seed": 1, "logit_bias": {"5": 1}, "stop": ["x"]},
        {"messages": [{"role": "user", "content": "hi"}],
         "response_format": {"type": "json_schema", "json_schema": {
             "name": "a", "strict": True, "schema": {
                 "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
                 "additionalProperties": False}}}},
        {"messages": [{"role": "user", "content": "hi"}], "tool_choice": "auto",
         "tools": [{"type": "function", "function": {
             "name": "f", "parameters": {"type": "object", "properties": {}}}}]},
        {"messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "1"}],
         "tandem": {"mode": "both", "keep_rate": 0.5, "page_budget": 4, "protect": [[0, 2]]}},
    ),
    "/v1/completions": (
        {"prompt": "hi"},
        {"prompt": ["a", "b"], "stream": True, "echo": True, "logprobs": 1, "n": 2},
        {"prompt": [1, 2, 3], "stop": "x", "min_p": 0.1, "top_k": 5, "min_tokens": 1,
         "presence_penalty": 1, "frequency_penalty": 1, "repetition_penalty": 1.1,
         "tandem": {"mode": "sparse", "page_policy": "quest", "trace": True}},
    ),
    "/tokenize": (
        {"prompt": "hi", "add_special_tokens": True, "return_token_strs": True},
        {"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": True,
         "chat_template_kwargs": {"a": 1}},
    ),
    "/v1/responses": (
        {"input": "hi"},
        {"input": [{"role": "user", "content": "hi"}], "instructions": "s", "stream": True,
         "temperature": 0.5, "text": {"format": {"type": "json_object"}}},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                   {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                   {"type": "function_call_output", "call_id": "c", "output": "1"}],
         "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}]},
    ),
    "/detokenize": ({"tokens": [1, 2, 3]},),
    "/admin/workers/nobody/drain": ({},),
}  # fmt: skip
_SEEDS["/v1/chat/completions/render"] = _SEEDS["/v1/chat/completions"]
_LIMITS = {
    "/v1/chat/completions": "max_completion_tokens",
    "/v1/completions": "max_tokens",
    "/v1/responses": "max_output_tokens",
}

Path = tuple[str | int, ...]
Damage = Callable[[Random, Any], Any]


def described_paths() -> set[str]:
    """Paths of the document that take a body, and the drain."""
    return {path for path, item in build_document()["paths"].items() if "post" in item}


def _body_schemas() -> Iterator[str]:
    for item in build_document()["paths"].values():
        content = item.get("post", {}).get("requestBody", {}).get("content", {})
        for media in content.values():
            if "$ref" in media["schema"]:
                yield media["schema"]["$ref"].rpartition("/")[2]


def seed_body(rng: Random, path: str, model: str) -> dict[str, Any]:
    """A small valid body for a path."""
    body: dict[str, Any] = copy.deepcopy(rng.choice(_SEEDS[path]))
    body["model"] = model
    if path in _LIMITS:
        body[_LIMITS[path]] = rng.randrange(1, 4)
    return body


def wire(rng: Random, model: str) -> Wire:
    """A damaged body on its way to the path that it was made for."""
    path = rng.choice(PATHS)
    body: Any = seed_body(rng, path, model)
    for _ in range(rng.randrange(1, 4)):
        body = rng.choice(DAMAGES)(rng, body)
    text = _text(body)
    if rng.random() < 0.25:
        text = rng.choice(TEXT_DAMAGES)(rng, text)
    raw = text.encode("utf-8", errors="surrogatepass")
    if rng.random() < 0.1:
        raw = _flip(rng, raw)
    return Wire(
        pieces=(post(raw, headers=b"connection: close\r\n", target=path.encode()),), waits=True
    )


def value(rng: Random, depth: int = 0) -> Any:
    """Any JSON value, or text that is none."""
    kind = rng.randrange(9 if depth < 3 else 5)
    simple: tuple[Callable[[], Any], ...] = (
        lambda: rng.choice(WORDS),
        lambda: rng.choice(NUMBERS),
        lambda: rng.choice([True, False, None]),
        lambda: RAW + rng.choice(TEXTS),
        lambda: rng.choice([[], {}, [[]], [None], {"": None}]),
    )
    if kind < len(simple):
        return simple[kind]()
    if kind == 5:
        return [value(rng, depth + 1) for _ in range(rng.randrange(5))]
    if kind == 6:
        return {
            rng.choice(NAMES + WORDS[:9]): value(rng, depth + 1) for _ in range(rng.randrange(4))
        }
    if kind == 7:
        return RAW + _deep(rng)
    entry = value(rng, 3)
    return [entry] * (20 if len(str(entry)) > _LONG else rng.choice([20, 300, 3_000]))


def _deep(rng: Random) -> str:
    depth = rng.choice([50, 200, 1_000, 20_000])
    opened, closed = rng.choice([("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
    return opened * depth + "1" + closed * depth


def swapped(rng: Random, body: Any) -> Any:
    """One value becomes another."""
    return _put(body, rng.choice(list(_paths(body))), value(rng))


def left_out(rng: Random, body: Any) -> Any:
    """One field or entry goes."""
    path = rng.choice(list(_paths(body)))
    if not path:
        return body
    parent = _get(body, path[:-1])
    del parent[path[-1]]
    return body


def added(rng: Random, body: Any) -> Any:
    """A field that nobody knows."""
    if isinstance(body, dict):
        body[rng.choice(NAMES)] = value(rng)
    return body


def described(rng: Random, body: Any) -> Any:
    """A field that the document knows gets any value."""
    if isinstance(body, dict):
        schema, name = rng.choice(FIELDS)
        target = body if schema in BODIES else body.get("tandem", body)
        if isinstance(target, dict):
            target[name] = value(rng)
    return body


def grammar(rng: Random, body: Any) -> Any:
    """A JSON schema that may be anything."""
    if not isinstance(body, dict):
        return body
    keyword = rng.choice(
        ["type", "properties", "items", "$ref", "pattern", "enum", "anyOf", "allOf", "oneOf", "not",
         "minItems", "maxLength", "multipleOf", "format", "additionalProperties", "$defs", "const"]
    )  # fmt: skip
    schema = rng.choice(
        [
            {keyword: value(rng)},
            {"type": "object", "properties": {"a": {keyword: value(rng)}}},
            {"$ref": "#"},
            {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
            {"type": "string", "pattern": "(a+)+$" * 20},
            {"type": "string", "pattern": "(" * 500},
            {"type": "array", "items": {"type": "integer"}, "minItems": 10**6},
        ]
    )
    if rng.random() < 0.5:
        body["response_format"] = {
            "type": rng.choice(["json_schema", "json_object", "text", "x", 1]),
            "json_schema": {"name": "a", "strict": True, "schema": schema},
        }
    else:
        body["tools"] = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
        body["tool_choice"] = rng.choice(["required", "auto", "none", {"type": "function"}, 7])
    return body


def no_object(rng: Random, body: Any) -> Any:
    """A body that is no object."""
    return value(rng) if rng.random() < 0.2 else [body]


def truncated(rng: Random, text: str) -> str:
    """The end is missing."""
    return text[: rng.randrange(len(text) + 1)]


def doubled(rng: Random, text: str) -> str:
    """Names twice, or two values."""
    if rng.random() < 0.3 or not text.startswith("{"):
        return text + rng.choice([text, " x", "\x00", "]", "}"])
    name = rng.choice(["model", "messages", "prompt", "stream", "max_tokens", "tandem"])
    return f'{{"{name}":{rng.choice(["null", "1", "[]", chr(34) * 2])},{text[1:]}'


def encoded(rng: Random, text: str) -> str:
    """A byte order mark, or what another encoding would look like."""
    return rng.choice(["\ufeff", "\x00", " " * 2_000, "\u2028"]) + text


DAMAGES: tuple[Damage, ...] = (
    swapped, swapped, swapped, left_out, added, described, described, grammar, no_object,
)  # fmt: skip
TEXT_DAMAGES = (truncated, doubled, encoded)
PATHS = (*sorted(_SEEDS), "/v1/chat/completions", "/v1/completions")
BODIES = tuple(_body_schemas())
FIELDS = tuple(
    (schema, name)
    for schema in (*BODIES, "TandemOptions")
    for name in build_document()["components"]["schemas"][schema]["properties"]
    if name != "model"
)


def _paths(body: Any, prefix: Path = ()) -> Iterator[Path]:
    yield prefix
    if isinstance(body, dict):
        for name, child in body.items():
            yield from _paths(child, (*prefix, name))
    elif isinstance(body, list):
        for index, child in enumerate(body[:20]):
            yield from _paths(child, (*prefix, index))


def _get(body: Any, path: Path) -> Any:
    for step in path:
        body = body[step]
    return body


def _put(body: Any, path: Path, new: Any) -> Any:
    if not path:
        return new
    _get(body, path[:-1])[path[-1]] = new
    return body


def _text(body: Any) -> str:
    """JSON with the raw parts in their places."""
    raws: list[str] = []

    def marked(part: Any) -> Any:
        if isinstance(part, str) and part.startswith(RAW):
            raws.append(part.removeprefix(RAW))
            return f"{RAW}{len(raws) - 1}{RAW}"
        if isinstance(part, dict):
            return {name: marked(child) for name, child in part.items()}
        if isinstance(part, list):
            return [marked(child) for child in part]
        return part

    return _MARK.sub(lambda mark: raws[int(mark[1])], json.dumps(marked(body)))


def _flip(rng: Random, raw: bytes) -> bytes:
    damaged = bytearray(raw)
    for _ in range(rng.randrange(1, 4)):
        if damaged:
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    return bytes(damaged)
