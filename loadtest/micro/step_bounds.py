"""What is asked of decode steps, by case, and whether a run met it."""

from typing import Any

from loadtest.micro.bounds import at_least
from loadtest.micro.vllm_peer import VLLM

_BOUNDS: dict[str, tuple[tuple[str, str, float], ...]] = {
    "r1-qwen-1.5b 64 x 18432": (
        ("dense", "delta", 2.4),
        (VLLM, "delta", 2.5),
        (VLLM, "dense", 1.03),
    ),
    "r1-qwen-1.5b 64 x 4096": (("dense", "delta", 1.0),),
    "llama-3.1-8b 16 x 32768": (
        ("dense", "delta", 1.0),
        ("dense", "pair", 2.7),
        (VLLM, "pair", 2.8),
    ),
    "llama-3.1-8b 1 x 32768": (
        ("dense", "delta", 1.0),
        ("dense", "pair", 1.15),
        (VLLM, "pair", 1.25),
    ),
}
"""By case: the arm whose step is divided, by which one, and the least that may be."""


def step_bounds(name: str, case: dict[str, Any]) -> dict[str, Any]:
    """What was asked for of a case, what it came to, and whether that is enough.

    Args:
        name: of the case.
        case: its result: `step_ms` by arm, and `vllm` if that ran beside it.
    """
    steps = {arm: times["median"] for arm, times in case.get("step_ms", {}).items()}
    if "step_ms" in case.get(VLLM, {}):
        steps[VLLM] = case[VLLM]["step_ms"]["median"]
    found = {}
    for slow, fast, least in _BOUNDS.get(name, ()):
        if slow in steps and fast in steps:
            found[f"{slow} over {fast}"] = at_least(steps[slow] / steps[fast], least)
    return found
