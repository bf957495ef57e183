"""vLLM in the bench of a prompt's pass: its engine, its chunks, and what its loop costs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from loadtest.micro.pass_arms import VllmPass
from loadtest.micro.vllm_peer import VllmPeer, VllmSettings, why_no_vllm
from loadtest.spread import spread
from shared.model.config import ModelConfig

SMALL_PROMPT = 16
"""Tokens of a prompt whose time to first token is nearly all loop and launches."""

_SMALL_RUNS = 12
_ANSWER_ROOM = 512
_SPARE_TOKENS = 2048

_FASTER_IN_CHUNKS = {32_768: 8192}
"""Lengths at which vLLM was a little faster in chunks than with the whole prompt in one step."""


def faster_chunk(tokens: int) -> int:
    """Most tokens of a step that vLLM was found fastest with; 0: the whole prompt."""
    return _FASTER_IN_CHUNKS.get(tokens, 0)


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


def vllm_arm(peer: VllmPeer, *, chunk_tokens: int | None) -> VllmPass:
    """The arm of `peer`; `chunk_tokens` None takes the faster way of each length."""

    def chunk_of(tokens: int) -> int:
        return faster_chunk(tokens) if chunk_tokens is None else chunk_tokens

    return VllmPass(peer=peer, chunk_tokens=chunk_of)


def vllm_report(arm: VllmPass | None, *, tokens: tuple[int, ...] = ()) -> dict[str, Any]:
    """JSON: what runs and how, and the cost that its times hold and ours do not; or why not."""
    if arm is None:
        return {"used": False, "reason": why_no_vllm() or "left out by --peer"}
    runs = [arm.peer.first_token(SMALL_PROMPT, chunk_tokens=0) for _ in range(_SMALL_RUNS)]
    return {
        "used": True,
        "engine": arm.peer.facts,
        "chunk_tokens": {str(n): arm.chunk_tokens(n) or "whole prompt" for n in tokens},
        "first_token_of_16_seconds": spread([run["seconds"] for run in runs[2:]]),
        "note": (
            "vllm's times run from handing in a prompt to its first token and so hold the loop "
            "of its engine; ours are passes in this process, device synchronized, without queue or "
            "network. What its loop costs shows in first_token_of_16_seconds; nothing is "
            "subtracted anywhere"
        ),
    }
