"""The rules that deltas keep; clients add them up, and what is said twice is there twice."""

from typing import Any

import pytest

from tests.support.stream_edits import Chunk, calls_in, choices_in, with_calls, with_choices
from tests.support.stream_reader import final_of
from tests.support.stream_rules import Rule

_DELTA_KEYS = {"role", "content", "tool_calls"}
_CALL_KEYS = {"index", "id", "type", "function"}


def _roles_come_once(raw: bytes) -> bool:
    chats = [choice for choice in choices_in(raw) if "delta" in choice]
    openings = [c for c in chats if "role" in c["delta"]]
    firsts = {c["index"]: c for c in reversed(chats)}
    return openings == [firsts[index] for index in sorted(firsts)]


def _with_role(choice: Chunk) -> None:
    choice["delta"]["role"] = "assistant"


def _role_is_repeated(raw: bytes) -> None:
    assert str(final_of(raw).choices[0].message.role).startswith("assistantassistant")


def _opens_with_empty_content(raw: bytes) -> bool:
    return all(
        choice["delta"] == {"role": "assistant", "content": ""}
        for choice in choices_in(raw)
        if "role" in choice.get("delta", {})
    )


def _without_empty_content(choice: Chunk) -> None:
    if choice["delta"].get("content") == "":
        del choice["delta"]["content"]


def _content_is_missing(raw: bytes) -> None:
    assert final_of(raw).choices[0].message.content is None


def _holds_nothing_of_ours(raw: bytes) -> bool:
    return all(set(choice.get("delta", {})) <= _DELTA_KEYS for choice in choices_in(raw))


def _with_ours(choice: Chunk) -> None:
    choice["delta"] |= {"worker": "d0", "step_ms": 2}


def _ours_adds_up(raw: bytes) -> None:
    extra = final_of(raw).choices[0].message.model_extra
    assert extra is not None
    deltas = len(choices_in(raw))
    assert (extra["worker"], extra["step_ms"]) == ("d0" * deltas, 2 * deltas)


def _calls_are_numbered(raw: bytes) -> bool:
    numbers = [call.get("index") for call in calls_in(raw)]
    known = [number for number in numbers if number is not None]
    return known == numbers and known == sorted(known) and set(known) == set(range(len(set(known))))


def _without_number(call: Chunk) -> None:
    del call["index"]


def _helper_fails(raw: bytes) -> None:
    with pytest.raises((TypeError, RuntimeError, KeyError)):
        final_of(raw)


def _named_once(raw: bytes) -> bool:
    seen: set[int] = set()
    for call in calls_in(raw):
        first = call.get("index") not in seen
        seen.add(call.get("index", -1))
        named = ("id" in call, "type" in call, "name" in call["function"])
        if named != (first, first, first) or not set(call) <= _CALL_KEYS:
            return False
    return True


def _with_names(call: Chunk) -> None:
    call["id"] = "call_1"
    call["function"]["name"] = "f"


def _names_are_repeated(raw: bytes) -> None:
    calls: Any = final_of(raw).choices[0].message.tool_calls
    assert calls[0].id.startswith("call_1call_1")
    assert calls[0].function.name.startswith("ff")


def _arguments_are_text(raw: bytes) -> bool:
    return all(isinstance(call["function"].get("arguments"), str) for call in calls_in(raw))


def _with_parsed_arguments(call: Chunk) -> None:
    if call["function"]["arguments"]:
        call["function"]["arguments"] = {"city": "x"}


def _arguments_are_no_text(raw: bytes) -> None:
    with pytest.warns(UserWarning, match="Expected `str`"):
        calls: Any = final_of(raw).choices[0].message.tool_calls
    assert calls[0].function.arguments == ""


def _finishes_as_calls(raw: bytes) -> bool:
    reasons = {choice["finish_reason"] for choice in choices_in(raw)} - {None, "length"}
    return not calls_in(raw) or reasons <= {"tool_calls"}


def _finish_as_text(choice: Chunk) -> None:
    if choice["finish_reason"]:
        choice["finish_reason"] = "stop"


def _calls_look_like_text(raw: bytes) -> None:
    (choice,) = final_of(raw).choices
    assert (choice.finish_reason, bool(choice.message.tool_calls)) == ("stop", True)


DELTAS = (
    Rule(
        name="the role comes once, else it is repeated",
        kept=_roles_come_once,
        broken=lambda raw: with_choices(raw, _with_role),
        shows=_role_is_repeated,
    ),
    Rule(
        name="empty content comes with the role, else an empty answer has none",
        kept=_opens_with_empty_content,
        of="empty",
        broken=lambda raw: with_choices(raw, _without_empty_content),
        shows=_content_is_missing,
    ),
    Rule(
        name="a delta has nothing of ours, else it is added up",
        kept=_holds_nothing_of_ours,
        broken=lambda raw: with_choices(raw, _with_ours),
        shows=_ours_adds_up,
    ),
)

CALLS = (
    Rule(
        name="a call has a number in every fragment, else the helper fails",
        kept=_calls_are_numbered,
        of="two calls",
        broken=lambda raw: with_calls(raw, _without_number),
        shows=_helper_fails,
    ),
    Rule(
        name="id, type and name come in the first fragment, else they are repeated",
        kept=_named_once,
        of="tools",
        broken=lambda raw: with_calls(raw, _with_names),
        shows=_names_are_repeated,
    ),
    Rule(
        name="arguments are pieces of text, else they are lost",
        kept=_arguments_are_text,
        of="tools",
        broken=lambda raw: with_calls(raw, _with_parsed_arguments),
        shows=_arguments_are_no_text,
    ),
    Rule(
        name="an answer with calls ends as tool_calls, else it looks like text",
        kept=_finishes_as_calls,
        of="tools",
        broken=lambda raw: with_choices(raw, _finish_as_text),
        shows=_calls_look_like_text,
    ),
)
