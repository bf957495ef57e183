"""Row "D dies mid-stream", allowed: SIGKILL of the decode worker, and the answer goes on.

What a client reads is what an undisturbed answer would have been, wherever the cut falls.
"""

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.sdk import AsyncTandemClient, GenerateParams
from tests.support.pools import PROMPT, Answer, Pool, running_pool
from tests.support.role_child import role_child
from tests.support.waiting import until

FULL: dict[str, Any] = {"mode": "full", "replay": True}
SCHEMA = {
    "type": "object",
    "properties": {
        "rows": {
            "type": "array",
            "minItems": 12,
            "maxItems": 12,
            "items": {
                "type": "object",
                "properties": {"n": {"type": "integer", "minimum": 10, "maximum": 9999}},
                "required": ["n"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["rows"],
    "additionalProperties": False,
}
DRAWN: dict[str, Any] = {
    "temperature": 0.7,
    "seed": 11,
    "presence_penalty": 0.4,
    "frequency_penalty": 0.3,
    "repetition_penalty": 1.2,
}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"max_tokens": 200},
    "drawn": {"max_tokens": 200} | DRAWN,
    "logprobs": {"max_tokens": 120, "logprobs": 3},
    "min_tokens": {"max_tokens": 150, "min_tokens": 120, "stop": [" "]} | DRAWN,
}
SLOW = {"logprobs", "min_tokens", "prune", "sparse"}


def each(names: Iterable[str]) -> list[Any]:
    """Those that the others stand for are marked."""
    return [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in names]


@asynccontextmanager
async def doomed_pool(
    model_dir: Path, profile: Path, children: Any, **settings: Any
) -> AsyncIterator[tuple[Pool, Any]]:
    """Workers of this process, and a decode worker of another one that a test kills."""
    decode = settings.get("decode", {})
    ways = {"model": str(model_dir), "profile": str(profile), **decode}
    with role_child(children, "decode", **ways) as victim:
        async with running_pool(
            model_dir,
            profile,
            more_decodes=(victim.address,),
            replay_answers=True,
            **settings,
        ) as pool:
            yield pool, victim


async def cut_short(pool: Pool, victim: Any, *, frames: int = 3, **fields: Any) -> Answer:
    """An answer whose decode worker is killed after so many frames with text."""

    def kill_soon(seen: int) -> None:
        if seen >= frames and victim.alive:
            victim.kill()

    with pool.avoided("decode", pool.decodes[0].address):
        return await pool.ask(kill_soon, **fields)


@pytest.mark.parametrize("way", each(WAYS))
async def test_the_answer_is_that_of_an_undisturbed_run(
    tiny_model_dir: Path, profile: Path, children: Any, way: str
) -> None:
    fields = WAYS[way] | {"tandem": FULL}
    async with doomed_pool(tiny_model_dir, profile, children) as (pool, victim):
        with pool.avoided("decode", victim.address):
            right = await pool.ask(**fields)
        answer = await cut_short(pool, victim, **fields)
        await until(lambda: not victim.alive)
        assert answer.error is None
        assert answer.report["replayed_tokens"] >= 3
        assert (answer.text, answer.finish_reason) == (right.text, right.finish_reason)
        assert answer.usage == right.usage
        assert answer.logprobs == pytest.approx(right.logprobs, abs=1e-4)
        health = (await pool.http.get("/health")).json()["replays"]["outcomes"]
        assert health["completed"] == 1


async def test_a_grammar_holds_over_the_seam(
    tiny_model_dir: Path, profile: Path, children: Any
) -> None:
    """By gRPC: the second worker's matcher stands where the first one's stood."""
    asked: GenerateParams = {
        "mode": "full", "replay": True, "max_tokens": 600, "response_format": SCHEMA,
        "temperature": 0.8, "seed": 3,
    }  # fmt: skip
    async with (
        doomed_pool(tiny_model_dir, profile, children) as (pool, victim),
        AsyncTandemClient(pool.gateway.grpc_address) as client,
    ):
        with pool.avoided("decode", victim.address):
            right = await client.generate(PROMPT, **asked)
        with pool.avoided("decode", pool.decodes[0].address):
            async with client.stream(PROMPT, **asked) as stream:
                deltas = 0
                async for _ in stream:
                    deltas += 1
                    if deltas == 5:
                        victim.kill()
                answer = await stream.result()
        assert answer.report.replayed_tokens >= 5
        assert (answer.text, answer.usage) == (right.text, right.usage)
        assert len(json.loads(answer.text)["rows"]) == 12


async def test_a_stop_string_ends_it_behind_the_seam(
    tiny_model_dir: Path, profile: Path, children: Any
) -> None:
    asked: dict[str, Any] = {"max_tokens": 200, "tandem": FULL} | DRAWN
    async with doomed_pool(tiny_model_dir, profile, children) as (pool, victim):
        with pool.avoided("decode", victim.address):
            whole = await pool.ask(**asked)
            late = len(whole.text) * 3 // 4
            stop = next(
                whole.text[late : late + size]
                for size in range(1, 40)
                if whole.text.find(whole.text[late : late + size]) == late
            )
            right = await pool.ask(**asked, stop=[stop])
        answer = await cut_short(pool, victim, **asked, stop=[stop])
        assert answer.report["replayed_tokens"]
        assert (answer.text, answer.finish_reason) == (whole.text[:late], "stop")
        assert (answer.text, answer.usage) == (right.text, right.usage)


async def test_a_decode_worker_that_reads_prompts_itself_takes_over(
    tiny_model_dir: Path, profile: Path, children: Any
) -> None:
    ways = {"prefills": 0, "decode": {"local_prefill_tokens": 4096}}
    async with doomed_pool(tiny_model_dir, profile, children, **ways) as (pool, victim):
        with pool.avoided("decode", victim.address):
            right = await pool.ask(max_tokens=200, tandem=FULL)
        answer = await cut_short(pool, victim, max_tokens=200, tandem=FULL)
        assert (answer.text, answer.error) == (right.text, None)
        assert answer.report["route"].startswith("local: ")
        assert answer.report["replayed_tokens"]


@pytest.mark.parametrize("mode", each(["prune", "sparse", "both"]))
async def test_what_is_pruned_or_skipped_goes_on_as_well(
    tiny_model_dir: Path, profile: Path, children: Any, mode: str
) -> None:
    """Up to the cut it is the same; what follows may differ, and is as long as it was to be."""
    asked = {"mode": mode, "replay": True, "trace": True}
    fields: dict[str, Any] = {"max_tokens": 200, "tandem": asked}
    async with doomed_pool(tiny_model_dir, profile, children) as (pool, victim):
        with pool.avoided("decode", victim.address):
            right = await pool.ask(**fields)
        answer = await cut_short(pool, victim, **fields)
        assert answer.error is None
        assert answer.usage == right.usage
        assert answer.text.startswith(right.text[:3])
        assert answer.report["replayed_tokens"]
        assert answer.report["kept_tokens"] == right.report["kept_tokens"]
        ours, theirs = answer.report["trace"], right.report["trace"]
        for trace in (ours, theirs):
            assert trace["prompt"].pop("handoff")["pushed"], "its times are each run's own"
        assert ours["prompt"] == theirs["prompt"], "of the prompt, and not of what was read again"
        phases = [bar["phase"] for bar in ours["waterfall"]]
        assert [*phases].index("replay") < phases.index("prefill"), "then the second pair's"
        seen = theirs["prompt"]["prompt_tokens"] + answer.report["replayed_tokens"]
        assert ours["pages"]["steps"][0]["position"] == seen - 1
