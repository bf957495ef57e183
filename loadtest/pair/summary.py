"""What the volleys come to: times by cell and arm, ratios to full attention, and the limits."""

from collections.abc import Mapping, Sequence
from typing import Any

from loadtest.pair.clients import Timed
from loadtest.pair.measure import Volley
from loadtest.pair.plan import ARMS, BASE
from loadtest.spread import paired_ratios, spread
from shared.model.config import ModelConfig
from shared.model.shapes import MODEL_SHAPES

MOST_ADDED_MS = 6.0
"""What may stand between the engine's own first token and a client's, one request at a time.

The engine's own is the phase `prefill`: a prompt's ids on the host to its first token's id there.
"""
MOST_CLAA_RATIO = 0.60
"""First token with CLAA at 10 % over that of full attention, at `RATIO_TOKENS`."""
MOST_EXPOSED = 0.02
"""Transfer after the last computation over the time to first token, at `RATIO_TOKENS`."""
RATIO_TOKENS = 10_000
"""Prompt length of two of the limits."""
LIMITED_GPU = "H200"
"""In the names of both GPUs that the limits are for."""
LIMITED_SHAPE = MODEL_SHAPES["llama-3.1-8b"]
"""The shape that they are for."""
_SIZES = (
    "num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim",
)  # fmt: skip


def summarize(volleys: Sequence[Volley]) -> dict[str, Any]:
    """Cells and limits, JSON-ready; a cell is a prompt length and a number of requests at once."""
    keys = dict.fromkeys((v.turn.prompt_tokens, v.turn.at_once) for v in volleys)
    cells = [
        _cell(tokens, at_once, [v for v in volleys if _key(v) == (tokens, at_once)])
        for tokens, at_once in keys
    ]
    return {"cells": cells, "limits": _limits(cells)}


def limits_apply(
    model: ModelConfig, *, workers: Sequence[Mapping[str, Any]], gpus: Sequence[Mapping[str, str]]
) -> bool:
    """Whether a pair is what the limits are for: the 8B shape, each role on an H200 of its own.

    Args:
        model: its shape.
        workers: its workers with their `device`.
        gpus: those of the machine with their `name`.
    """
    devices = {str(worker["device"]) for worker in workers}
    return (
        all(getattr(model, size) == getattr(LIMITED_SHAPE, size) for size in _SIZES)
        and len(devices) > 1
        and all(device.startswith("cuda") for device in devices)
        and bool(gpus)
        and all(LIMITED_GPU in gpu["name"] for gpu in gpus)
    )


def _key(volley: Volley) -> tuple[int, int]:
    return volley.turn.prompt_tokens, volley.turn.at_once


def _cell(tokens: int, at_once: int, volleys: Sequence[Volley]) -> dict[str, Any]:
    arms = {arm: [v for v in volleys if v.arm == arm] for arm in ARMS}
    present = {arm: found for arm, found in arms.items() if found}
    return {
        "prompt_tokens": tokens,
        "at_once": at_once,
        "new_tokens": max(v.turn.new_tokens for v in volleys),
        "arms": {arm: _arm(found, present.get(BASE, [])) for arm, found in present.items()},
    }


def _arm(volleys: Sequence[Volley], base: Sequence[Volley]) -> dict[str, Any]:
    answers = [answer for volley in volleys for answer in volley.answers]
    whole = [volley for volley in volleys if not volley.turn.short]
    first = answers[0].report
    return {
        "requests": len(answers),
        "kept_tokens": first["kept_tokens"],
        "kv_bytes": first["kv_bytes"],
        "transports": sorted({str(answer.report["transport"]) for answer in answers}),
        "ttft_ms": _ms([answer.ttft_s for answer in answers]),
        "ttft_ms_by_client": _by_client(volleys),
        "ttft_of_full": _ratios(volleys, base),
        "engine_ttft_ms": _ms([answer.phase_s("prefill") for answer in answers]),
        "added_ttft_ms": _ms([answer.ttft_s - answer.phase_s("prefill") for answer in answers]),
        "exposed_transfer_ms": _ms([answer.phase_s("transfer") for answer in answers]),
        "exposed_share": spread([answer.phase_s("transfer") / answer.ttft_s for answer in answers]),
        "second_token_ms": _ms([answer.second_s - answer.ttft_s for answer in answers]),
        "tokens_per_s": _speeds(whole),
        "tokens_per_s_in_all": _rates(whole),
        "attended_ratio": first["attended_ratio"],
    }


def _ms(seconds: Sequence[float]) -> dict[str, float]:
    return spread([1000 * value for value in seconds])


def _by_client(volleys: Sequence[Volley]) -> dict[str, dict[str, float]]:
    by_client: dict[str, list[Timed]] = {}
    for volley in volleys:
        by_client.setdefault(volley.turn.client, []).extend(volley.answers)
    return {name: _ms([each.ttft_s for each in found]) for name, found in by_client.items()}


def _ratios(volleys: Sequence[Volley], base: Sequence[Volley]) -> dict[str, float] | None:
    """Medians of volleys of the same round, one over the other; None without full attention."""
    if not base:
        return None
    return paired_ratios([_middle(v) for v in volleys], [_middle(v) for v in base])


def _middle(volley: Volley) -> float:
    return spread([answer.ttft_s for answer in volley.answers])["median"]


def _speeds(volleys: Sequence[Volley]) -> dict[str, float] | None:
    """Of single answers; None where all were short."""
    values = [answer.tokens_per_s for volley in volleys for answer in volley.answers]
    return spread(values) if values else None


def _rates(volleys: Sequence[Volley]) -> dict[str, float] | None:
    """Tokens of all answers of a volley, a second of its whole time."""
    values = [sum(answer.tokens for answer in v.answers) / v.wall_s for v in volleys]
    return spread(values) if values else None


def _limits(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What the pair is held to, as far as it was measured; medians."""
    alone = [cell for cell in cells if cell["at_once"] == 1]
    found = []
    for cell in alone:
        found += [
            _added_limit(cell["prompt_tokens"], name, arm) for name, arm in cell["arms"].items()
        ]
        claa = cell["arms"].get("claa10")
        if claa is None or cell["prompt_tokens"] != RATIO_TOKENS:
            continue
        if claa["ttft_of_full"] is not None:
            found.append(
                _limit(
                    f"time to first token, CLAA 10 % over full, {RATIO_TOKENS} tokens",
                    claa["ttft_of_full"]["median"],
                    at_most=MOST_CLAA_RATIO,
                )
            )
        found.append(
            _limit(
                f"transfer after the last computation over time to first token, CLAA 10 %, "
                f"{RATIO_TOKENS} tokens",
                claa["exposed_share"]["median"],
                at_most=MOST_EXPOSED,
            )
        )
    return found


def _added_limit(tokens: int, name: str, arm: Mapping[str, Any]) -> dict[str, Any]:
    """Of the median over all requests of an arm, short answers and both clients included."""
    return _limit(
        f"ms added to the engine's own first token, {tokens} tokens, {ARMS[name].title}",
        arm["added_ttft_ms"]["median"],
        at_most=MOST_ADDED_MS,
    )


def _limit(name: str, measured: float, *, at_most: float) -> dict[str, Any]:
    return {"limit": name, "measured": measured, "at_most": at_most, "met": measured <= at_most}
