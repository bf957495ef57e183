"""vLLM in the bench of a prompt's pass: its engine, its chunks, and what its loop costs."""

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from loadtest.micro.vllm_peer import VllmPeer, VllmSettings, why_no_vllm
from loadtest.spread import spread
from shared.model.config import ModelConfig

SMALL_PROMPT = 16
"""Tokens of a prompt whose time to first token is nearly all loop and launches."""

_ANSWER_ROOM = 512
_SPARE_TOKENS = 2048

_CHUNK = 8192
"""The other way to read a prompt than whole: vLLM's own default on such a device."""

_LONGEST_LOOK = 40_000
"""Longer prompts are read whole unless asked otherwise: both ways differ by less than they vary."""

_LOOKS = 3


def prefill_settings(config: ModelConfig, tokens: tuple[int, ...]) -> VllmSettings:
    """One prompt at a time, in one step if wanted."""
    longest = max(tokens) + _ANSWER_ROOM
    return VllmSettings(
        config=config,
        max_tokens=longest,
        kv_tokens=longest + _SPARE_TOKENS,
        step_tokens=longest,
    )


@contextmanager
def running_vllm(
    settings: VllmSettings, *, given: VllmPeer | None, wanted: bool
) -> Iterator[VllmPeer | None]:
    """A bench's vLLM: the one given, or one of its own that ends with it; None: none.

    It is starting when the context begins.
    """
    if given is not None or not wanted or why_no_vllm() is not None:
        yield given
        return
    peer = VllmPeer(settings)
    try:
        yield peer
    finally:
        peer.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkChoice:
    """How vLLM reads the prompts of a plan."""

    chunk_tokens: dict[int, int]
    """Most tokens of a step by prompt tokens; 0: the whole prompt."""
    looks: dict[int, dict[int, float]]
    """Median seconds to first token by prompt tokens and chunk, where both ways were tried."""


def choose_chunks(
    peer: VllmPeer, tokens: tuple[int, ...], *, chunk_tokens: int | None
) -> ChunkChoice:
    """The faster way of each length, tried in this run, or `chunk_tokens` if that is given."""
    chosen: dict[int, int] = {}
    looks: dict[int, dict[int, float]] = {}
    for n in tokens:
        if chunk_tokens is not None or not _CHUNK < n <= _LONGEST_LOOK:
            chosen[n] = chunk_tokens or 0
            continue
        looks[n] = {chunk: _median_seconds(peer, n, chunk=chunk) for chunk in (0, _CHUNK)}
        chosen[n] = min(looks[n], key=lambda chunk: looks[n][chunk])
    return ChunkChoice(chunk_tokens=chosen, looks=looks)


def vllm_report(
    peer: VllmPeer | None, choice: ChunkChoice | None = None, *, runs: int = 10
) -> dict[str, Any]:
    """JSON: what runs and how, and the cost that its times hold and ours do not; or why not."""
    if peer is None or choice is None:
        return {"used": False, "reason": why_no_vllm() or "left out by --peer"}
    small = [peer.first_token(SMALL_PROMPT, chunk_tokens=0)["seconds"] for _ in range(runs + 2)]
    return {
        "used": True,
        "engine": peer.facts,
        "chunk_tokens": {str(n): c or "whole prompt" for n, c in choice.chunk_tokens.items()},
        "first_token_seconds_by_chunk": {
            str(n): {str(chunk or "whole prompt"): seconds for chunk, seconds in by_chunk.items()}
            for n, by_chunk in choice.looks.items()
        },
        "first_token_of_16_seconds": spread(small[2:]),
        "note": (
            "vllm's times run from handing in a prompt to its first token and so hold the loop "
            "of its engine; ours are passes in this process, device synchronized, without queue or "
            "network. What its loop costs shows in first_token_of_16_seconds; nothing is "
            "subtracted anywhere"
        ),
    }


def _median_seconds(peer: VllmPeer, tokens: int, *, chunk: int) -> float:
    runs = [peer.first_token(tokens, chunk_tokens=chunk)["seconds"] for _ in range(_LOOKS + 1)]
    return float(statistics.median(runs[1:]))
