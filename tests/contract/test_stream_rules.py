"""Every rule of the event stream: our streams keep it, and a client suffers from one that does not.

Streams of every kind are recorded once from a running gateway. What comes from them and what is
made of them on purpose is read by the real openai-python, without a network between.
"""

import json
from pathlib import Path

import openai
import pytest
import pytest_asyncio

from tests.support.delta_rules import CALLS, DELTAS
from tests.support.gateway_rig import data_frames
from tests.support.recorded_streams import KINDS, TEXT, record
from tests.support.stream_edits import choices_in, chunks_in, frames_of
from tests.support.stream_reader import chunks_of, final_of
from tests.support.stream_rules import ENDING, ENVELOPE, FRAMING, Rule

RULES = (*FRAMING, *ENDING, *ENVELOPE, *DELTAS, *CALLS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def streams(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder: Path = tmp_path_factory.mktemp("recorded") / "simulated"
    return await record(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_every_stream_keeps_every_rule(streams: dict[str, bytes], kind: str) -> None:
    assert [rule.name for rule in RULES if not rule.kept(streams[kind])] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_broken_rule_is_found_and_is_what_hurts_the_client(
    streams: dict[str, bytes], rule: Rule
) -> None:
    broken = rule.broken(streams[rule.of])
    assert not rule.kept(broken)
    rule.shows(broken)


@pytest.mark.parametrize("kind", ["chat", "bare", "running usage", "logprobs", "late"])
def test_the_client_reads_the_text(streams: dict[str, bytes], kind: str) -> None:
    final = final_of(streams[kind])
    (choice,) = final.choices
    assert (choice.message.content, choice.message.role) == (TEXT, "assistant")
    assert choice.finish_reason == "stop"
    assert (final.usage is not None) == (kind != "bare")


def test_comments_change_nothing(streams: dict[str, bytes]) -> None:
    raw = streams["late"]
    assert raw.startswith(b": ping\n\n")
    assert b"}\n\n: ping\n\n" in raw
    without = b"".join(f for f in frames_of(raw) if not f.startswith(b":"))
    assert [c.model_dump() for c in chunks_of(raw)] == [c.model_dump() for c in chunks_of(without)]


def test_nothing_but_comments_comes_before_the_first_token(streams: dict[str, bytes]) -> None:
    """Tools take the first data line for the first token."""
    first, second, *_ = (f for f in frames_of(streams["late"]) if f.startswith(b"data: "))
    between = streams["late"].split(first)[1].split(second)[0]
    assert between == b""
    assert data_frames(second)[0]["choices"][0]["delta"]["content"]


def test_the_extension_is_at_the_top_of_the_usage_chunk(streams: dict[str, bytes]) -> None:
    *rest, last = chunks_in(streams["chat"])
    assert last["usage"]["completion_tokens"]
    assert last["tandem"]["ttft_ms"] > 0
    assert not any("tandem" in chunk for chunk in rest)
    assert chunks_of(streams["chat"])[-1].model_extra == {"tandem": last["tandem"]}


def test_a_failure_is_an_error_with_its_code(streams: dict[str, bytes]) -> None:
    for kind in ("failed", "failed completion"):
        with pytest.raises(openai.APIError, match="pages lost") as caught:
            chunks_of(streams[kind])
        assert (caught.value.code, caught.value.type) == ("kv_transfer_failed", "server_error")
        text = "".join(
            choice.get("text") or choice.get("delta", {}).get("content") or ""
            for choice in choices_in(streams[kind])
        )
        assert text
        assert TEXT.startswith(text)


def test_a_limit_is_told_as_length(streams: dict[str, bytes]) -> None:
    for kind in ("length", "cut call"):
        assert choices_in(streams[kind])[-1]["finish_reason"] == "length"
        with pytest.raises(openai.LengthFinishReasonError):  # of the helper, which parses
            final_of(streams[kind])


def test_calls_are_put_together(streams: dict[str, bytes]) -> None:
    (choice,) = final_of(streams["two calls"]).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    calls = choice.message.tool_calls
    assert calls is not None
    assert [json.loads(call.function.arguments) for call in calls] == [{"city": "Zürich"}] * 2
    assert len({call.id for call in calls}) == 2
