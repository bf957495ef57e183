"""Conversations, tool calls and overrides of the load suite before a gateway, in both protocols."""

import json
from collections.abc import Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest

from shared.types.options import Mode
from tests.support.gateway_rig import DEFAULT_ANSWER, Rig, running_rig
from tests.support.load_runs import RUN, requests_in, started, summary_in
from tests.support.tiny_tokenizer import write_tokenizer_folder
from tests.support.tool_templates import HERMES

CALL = '<tool_call>\n{"name": "opening_hours", "arguments": {"place": "market"}}\n</tool_call>'
ROOM = 4096
"""Tools take many of the tokenizer's tokens, which are bytes."""
PATIENT = ("ttft=60,tpot=60", "--max-lag", "1000")


def bounds(kind: str) -> tuple[str, ...]:
    """What a busy machine can keep."""
    return ("--slo", f"{kind}:{PATIENT[0]}", *PATIENT[1:], "--no-report")


def roomy_model(folder: Path) -> Path:
    """One that knows tools, with a context for them."""
    write_tokenizer_folder(folder, chat_template=HERMES)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": ROOM}))
    return folder


def remember_prompts(rig: Rig, answers: Sequence[tuple[str, str]]) -> list[str]:
    """Has the pair answer by what a prompt ends on; gives the prompts as they come."""
    prompts: list[str] = []
    tokenizer = rig.simulation.tokenizer

    def answer(prompt: Sequence[int]) -> list[int]:
        text = tokenizer.decode(list(prompt))
        prompts.append(text)
        said = next(said for mark, said in answers if mark in text)
        return [*tokenizer.encode(said), tokenizer.eos_ids[0]]

    rig.simulation.answer = answer
    return prompts


async def test_a_conversation_grows_turn_by_turn(tmp_path: Path) -> None:
    model = roomy_model(tmp_path / "model")
    out = tmp_path / "out"
    async with running_rig(model, max_model_len=ROOM) as rig:
        prompts = remember_prompts(rig, [("", DEFAULT_ANSWER)])
        code, said = await started(
            *RUN, "--host", rig.url, "--api", "chat", "--workload", "multi_turn", "--rate", "4",
            "--seconds", "1", "--seed", "5", "--mode", "sparse", "--out", str(out),
            *bounds("multi_turn"),
        )  # fmt: skip
        modes = {options.mode for options in rig.simulation.options}
    assert code == 0, said
    assert modes == {Mode.SPARSE}
    found = summary_in(out)
    assert found["planned"] == found["requests"]["offered"] == found["requests"]["met"]
    assert found["settings"]["overrides"] == {"mode": "sparse"}
    rows = sorted(requests_in(out), key=lambda row: (row["index"], row["turn"]))
    assert max(row["turn"] for row in rows) >= 1
    for _, talk in groupby(rows, key=lambda row: row["index"]):
        turns = list(talk)
        assert [row["turn"] for row in turns] == list(range(len(turns)))
        sizes = [row["prompt_tokens"] for row in turns]
        assert sizes == sorted(sizes)
        for before, after in pairwise(turns):
            said_before = before["prompt_tokens"] + before["answer_tokens"]
            assert after["prompt_tokens"] > said_before - 20  # the template's own marks
            assert after["due_s"] >= before["ended_s"] + 0.2 - 1e-6  # the user thinks
    later = [text for text in prompts if text.count("assistant\n") > 1]
    assert later
    assert all(DEFAULT_ANSWER[:8] in text for text in later)
    by_turn = found["classes"]["multi_turn"]["turns"]
    means = [row["prompt_tokens"] for row in by_turn]
    assert means[0] < means[1]
    assert by_turn[0]["ttft"]["count"] == by_turn[0]["offered"]


@pytest.mark.parametrize("api", ["chat", "grpc"])
async def test_a_call_and_its_result(api: str, tmp_path: Path) -> None:
    model = roomy_model(tmp_path / "model")
    out = tmp_path / "out"
    async with running_rig(model, max_model_len=ROOM) as rig:
        prompts = remember_prompts(rig, [('"minutes"', DEFAULT_ANSWER), ("<tool_call>.", CALL)])
        rpc = ("--grpc", rig.gateway.grpc_address) if api == "grpc" else ()
        code, said = await started(
            *RUN, "--host", rig.url, "--api", api, *rpc, "--workload", "tools", "--rate", "4",
            "--seconds", "0.7", "--seed", "1", "--keep-rate", "0.5", "--out", str(out),
            *bounds("tools"),
        )  # fmt: skip
        kept = {options.keep_rate for options in rig.simulation.options}
    assert code == 0, said
    assert kept == {0.5}
    found: dict[str, Any] = summary_in(out)
    counts = found["requests"]
    assert counts["offered"] == counts["met"] == found["planned"] > 0
    assert counts["offered"] % 2 == 0
    results = [text for text in prompts if '"minutes"' in text]
    assert len(set(results)) == counts["offered"] // 2  # the pair asks once a token
    assert all('"place": "market"' in text for text in results)
    assert found["classes"]["tools"]["work"]["kept_tokens"] > 0
