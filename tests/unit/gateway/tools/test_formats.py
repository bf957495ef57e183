"""Formats of tool calls: which one a model has, and the grammars that enforce it."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.tools.base import ToolFormat
from gateway.tools.events import ArgumentsPiece, CallStarted
from gateway.tools.grammar import CallRules, call_grammar
from gateway.tools.parser import ToolCallParser
from gateway.tools.registry import FORMATS, check_setting, format_for
from shared.errors import ConfigError
from shared.grammar.compiler import GrammarCompiler
from shared.tokenizer.chat_template import ChatTemplate
from shared.tokenizer.tokenizer import Tokenizer
from tests.support.tiny_tokenizer import CHAT_TEMPLATE, write_tokenizer_folder
from tests.support.tool_templates import TEMPLATES

TOOLS: list[tuple[str, dict[str, Any]]] = [
    ("look", {"type": "object", "properties": {"where": {"enum": ["up", "down"]}},
              "required": ["where"], "additionalProperties": False}),
    ("look_all", {"type": "object", "properties": {}, "additionalProperties": False}),
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_folder(write_tokenizer_folder(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(scope="module")
def special_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Markers are special tokens, as Mistral's are."""
    markers = ("[TOOL_CALLS]", "<tool_call>", "</tool_call>", "<|python_tag|>")
    folder = write_tokenizer_folder(
        tmp_path_factory.mktemp("special") / "model", more_special=markers
    )
    return Tokenizer.from_folder(folder)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_tells_the_format(name: str) -> None:
    found = format_for("auto", ChatTemplate(TEMPLATES[name]))
    assert found is FORMATS[name]


@pytest.mark.parametrize("template", [None, ChatTemplate(CHAT_TEMPLATE), ChatTemplate("{{tools}}")])
def test_no_format_is_guessed(template: ChatTemplate | None) -> None:
    assert format_for("auto", template) is None


def test_the_operator_decides() -> None:
    assert format_for("mistral", ChatTemplate(TEMPLATES["hermes"])) is FORMATS["mistral"]
    assert format_for("none", ChatTemplate(TEMPLATES["hermes"])) is None
    with pytest.raises(ConfigError, match="tool_parser"):
        check_setting("pythonic")


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda form: form.name)
def test_whatever_a_required_grammar_lets_through_is_read_as_calls(
    form: ToolFormat,
    several: bool,
    special: bool,
    tokenizer: Tokenizer,
    special_tokenizer: Tokenizer,
) -> None:
    chosen = special_tokenizer if special else tokenizer
    rules = CallRules(tools=TOOLS, required=True, several=several)
    for seed in range(6):
        text, ended = walk(form, rules, chosen, seed=seed)
        assert several or ended
        parser = ToolCallParser(form, names=[name for name, _ in TOOLS], enforced=True)
        events = parser.push(text) + parser.finish()
        assert {type(event) for event in events} <= {CallStarted, ArgumentsPiece}
        if not ended:
            continue
        assert parser.complete
        if not several:
            assert parser.calls == 1
        arguments = [json.loads(e.text) for e in events if isinstance(e, ArgumentsPiece)]
        assert all(a in ({}, {"where": "up"}, {"where": "down"}) for a in arguments)


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", ["hermes", "mistral"])
def test_in_free_text_an_opener_must_be_followed_by_a_call(
    name: str, special: bool, tokenizer: Tokenizer, special_tokenizer: Tokenizer
) -> None:
    form, chosen = FORMATS[name], special_tokenizer if special else tokenizer
    rules = CallRules(tools=TOOLS, required=False, several=True)
    for seed in range(4):
        text, _ = walk(form, rules, chosen, seed=seed, begin="Hello " + form.openers[0], most=400)
        parser = ToolCallParser(form, names=[name for name, _ in TOOLS], enforced=True)
        parser.push(text)
        assert parser.calls >= 1


def test_free_text_without_a_marker_is_not_bound() -> None:
    rules = CallRules(tools=TOOLS, required=False, several=True)
    assert call_grammar(FORMATS["llama3_json"], rules, special_id=lambda _: None) == ""


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda form: form.name)
def test_a_schema_takes_the_place_of_free_text(form: ToolFormat, tokenizer: Tokenizer) -> None:
    answer = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
              "additionalProperties": False}  # fmt: skip
    rules = CallRules(tools=TOOLS, required=False, several=False, answer=answer)
    for seed in range(8):
        text, ended = walk(form, rules, tokenizer, seed=seed)
        assert ended
        parser = ToolCallParser(form, names=[name for name, _ in TOOLS], enforced=form.marked)
        parser.push(text)
        parser.finish()
        if not parser.calls:
            assert json.loads(text) in ({"ok": True}, {"ok": False})


def walk(
    form: ToolFormat,
    rules: CallRules,
    tokenizer: Tokenizer,
    *,
    seed: int,
    begin: str = "",
    most: int = 300,
) -> tuple[str, bool]:
    """Text of random allowed tokens, and whether it came to its end."""
    grammar = call_grammar(form, rules, special_id=tokenizer.special_id)
    matcher = GrammarCompiler(tokenizer).matcher(grammar)
    choose = random.Random(seed)
    ids = tokenizer.encode(begin)
    assert matcher.follow(ids) is None
    while len(ids) < most:
        allowed = np.flatnonzero(matcher.allowed(tokenizer.vocab_size))
        token_id = int(choose.choice(list(allowed)))
        if token_id in tokenizer.eos_ids:
            return tokenizer.decode(ids, skip_special_tokens=False), True
        matcher.accept(token_id)
        ids.append(token_id)
    return tokenizer.decode(ids, skip_special_tokens=False), False


def test_ids_fit_the_family() -> None:
    assert len(FORMATS["mistral"].new_id()) == 9
    assert FORMATS["hermes"].new_id().startswith("call_")


def test_a_template_of_its_own_for_tools(tmp_path: Path) -> None:
    settings = {
        "chat_template": [
            {"name": "default", "template": "plain"},
            {"name": "tool_use", "template": "<tool_call> {{ tools | length }}"},
        ]
    }
    template = ChatTemplate.from_folder(tmp_path, settings)
    assert template is not None
    assert template.render([]) == "plain"
    assert template.render([], variables={"tools": [1, 2]}) == "<tool_call> 2"
    assert format_for("auto", template) is FORMATS["hermes"]
