"""Grammars of tool calls, in Lark as llguidance reads it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.structured.enforcer import styled
from gateway.tools.base import ToolFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRules:
    """What the calls of an answer must be."""

    tools: Sequence[tuple[str, dict[str, Any]]]
    """Names and the schemas of their arguments."""
    required: bool
    """At least one call, and nothing else."""
    several: bool
    """More than one call is allowed."""
    answer: dict[str, Any] | None = None
    """Schema of an answer without calls; None: any text."""


def call_grammar(
    form: ToolFormat, rules: CallRules, *, special_id: Callable[[str], int | None]
) -> str:
    """The grammar of an answer; empty when only text could say that a call begins.

    Args:
        form: how the model writes calls.
        rules: which calls.
        special_id: ids of special tokens.
    """
    marked = form.marked
    if not (rules.required or rules.answer is not None or marked):
        return ""
    several = rules.several and form.several
    lines = _object_rules(form, rules)
    lines.append(f"calls: {_calls(form, special_id, several=several)}")
    if rules.required:
        return "\n".join(["start: calls", *lines])
    if rules.answer is not None:
        answer = f"answer: %json {json.dumps(styled(rules.answer))}"
        return "\n".join(["start: calls | answer", *lines, answer])
    return "\n".join([*_in_text(form, special_id, several=several), *lines])


def _object_rules(form: ToolFormat, rules: CallRules) -> list[str]:
    names = range(len(rules.tools))
    lines = ["object: " + " | ".join(f"object_{i}" for i in names)]
    for i, (name, schema) in enumerate(rules.tools):
        lines.append(f'object_{i}: {_quoted(form.head(name))} arguments_{i} "}}"')
        lines.append(f"arguments_{i}: %json {json.dumps(styled(schema))}")
    return lines


def _calls(form: ToolFormat, special_id: Callable[[str], int | None], *, several: bool) -> str:
    region = _region(form, special_id, several=several)
    if form.marked:
        region = f"{_atom(form.openers[0], special_id)} {region}"
    if several and not form.separator:
        return f'{region} ("\\n" {region})*'
    return region


def _region(form: ToolFormat, special_id: Callable[[str], int | None], *, several: bool) -> str:
    """What follows the opener."""
    objects = "object"
    if several and form.separator:
        objects = f"object ({_quoted(form.separator)} object)*"
    ends = [_quoted(form.before), objects, _quoted(form.after), _atom(form.end, special_id)]
    return " ".join(end for end in ends if end)


def _in_text(
    form: ToolFormat, special_id: Callable[[str], int | None], *, several: bool
) -> list[str]:
    """Free text in which the opener, once it is complete, has to be followed by a call."""
    region = _region(form, special_id, several=several)
    opener = form.openers[0]
    if special_id(opener) is not None:
        opened = f"opened: TEXT {_atom(opener, special_id)}"
    else:
        opened = f"opened[lazy]: TEXT {_quoted(opener)}"
    repeated = several and not form.separator
    start = "start: called* rest" if repeated else "start: called | rest"
    return [start, f"called: opened {region}", opened, "rest: TEXT", r"TEXT: /(.|\n)*/"]


def _atom(text: str, special_id: Callable[[str], int | None]) -> str:
    token_id = special_id(text)
    return _quoted(text) if token_id is None else f"<[{token_id}]>"


def _quoted(text: str) -> str:
    return json.dumps(text) if text else ""
