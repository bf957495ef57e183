"""Streams of a running gateway as they were on the wire, one of each kind that clients meet."""

from pathlib import Path
from typing import Any

from shared.errors import HandoffError
from tests.support.gateway_rig import Rig, running_rig
from tests.support.simulated_workers import FailEvent
from tests.support.tiny_tokenizer import write_tokenizer_folder
from tests.support.tool_templates import TEMPLATES

TEXT = "Naïve 漢字 🤖👩‍🚀 the end."
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "weather"}}]
USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}
KINDS = (
    "chat",
    "bare",
    "running usage",
    "choices",
    "empty",
    "length",
    "logprobs",
    "tools",
    "two calls",
    "cut call",
    "completion",
    "completion choices",
    "late",
    "failed",
    "failed completion",
)


async def record(folder: Path) -> dict[str, bytes]:
    """Bytes of a stream of every kind.

    Args:
        folder: an empty one, for the tokenizer.
    """
    write_tokenizer_folder(folder, chat_template=TEMPLATES["hermes"])
    async with running_rig(folder, keepalive_s=0.05) as rig:
        rig.answer_with(TEXT)
        streams = {
            "chat": await _chat(rig, **USAGE),
            "bare": await _chat(rig),
            "running usage": await _chat(
                rig, stream_options={"include_usage": True, "continuous_usage_stats": True}
            ),
            "choices": await _chat(rig, n=3, **USAGE),
            "empty": await _chat(rig, stop=["N"], **USAGE),
            "length": await _chat(rig, max_tokens=5, **USAGE),
            "logprobs": await _chat(rig, logprobs=True, top_logprobs=3, **USAGE),
            "completion": await _complete(rig, max_tokens=99, logprobs=2, **USAGE),
            "completion choices": await _complete(rig, prompt=["a", "b"], n=2, **USAGE),
        }
        rig.prefills[0].plan.at("first_token", 0.3)
        rig.decodes[0].plan.at("token:3", 0.3)
        streams["late"] = await _chat(rig, **USAGE)
        rig.decodes[0].plan.at("token:8", FailEvent(HandoffError("pages lost")), times=2)
        streams["failed"] = await _chat(rig, **USAGE)
        streams["failed completion"] = await _complete(rig, max_tokens=99)
        rig.answer_with(CALL)
        streams["tools"] = await _chat(rig, tools=TOOLS, **USAGE)
        streams["cut call"] = await _chat(rig, tools=TOOLS, max_tokens=60, **USAGE)
        rig.answer_with(f"Let me see.\n{CALL}\n{CALL}")
        streams["two calls"] = await _chat(rig, tools=TOOLS, **USAGE)
    assert set(streams) == set(KINDS)
    return streams


async def _chat(rig: Rig, **fields: Any) -> bytes:
    response = await rig.chat(stream=True, **fields)
    assert response.status_code == 200, response.text
    return response.content


async def _complete(rig: Rig, **fields: Any) -> bytes:
    response = await rig.complete(stream=True, **fields)
    assert response.status_code == 200, response.text
    return response.content
