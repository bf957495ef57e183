"""What is asked of a prompt's pass, by length, and whether a run met it."""

from typing import Any

from loadtest.micro.pass_arms import FULL, claa
from loadtest.micro.vllm_peer import VLLM

CUDNN_PEER = "transformers (cudnn)"

_EVERYWHERE = ((FULL, CUDNN_PEER, 0.85), (FULL, VLLM, 1.0), (claa(0.1), VLLM, 0.55))

_BOUNDS: dict[int, tuple[tuple[str, str, float], ...]] = {
    10_000: (
        *_EVERYWHERE,
        (claa(0.1), FULL, 0.54),
        (claa(0.2), FULL, 0.59),
        (claa(0.4), FULL, 0.69),
    ),
    32_768: (*_EVERYWHERE, (claa(0.1), FULL, 0.53)),
    65_536: (*_EVERYWHERE, (claa(0.1), FULL, 0.52)),
}
"""By prompt tokens: an arm, the arm that its time is divided by, and the most that may be."""

_SHARE_TOKENS = 10_000
_SELECT_SHARE = 0.01
"""Most of a pruned 10k prompt's time that scoring and selecting may take."""


def bounds(tokens: int, at: dict[str, Any]) -> dict[str, Any]:
    """What was asked for at a length, what it came to, and whether that is enough."""
    found = {}
    for arm, base, most in _BOUNDS.get(tokens, ()):
        ratios = at.get(f"ratio_to_{base}", {}).get(arm)
        if ratios is not None:
            found[f"{arm} over {base}"] = _bound(ratios["median"], most)
    share = at["arms"].get(claa(0.1), {}).get("select_share")
    if tokens == _SHARE_TOKENS and share is not None:
        found["scoring and selection over claa 10 %"] = _bound(share["median"], _SELECT_SHARE)
    return found


def _bound(value: float, most: float) -> dict[str, Any]:
    return {"value": value, "at_most": most, "met": value <= most}
